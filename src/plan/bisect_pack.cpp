// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Some documents go whole to either rank, and what rows and area are then too many change hands as parts of documents
// (pack_exchange.hpp). What that costs at least is known in closed form, so that of thousands of sets few must be
// assigned.
#include "plan/bisect_pack.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>

#include "plan/pack_exchange.hpp"

namespace tangram {

namespace {

constexpr size_t kAllFree = 16;  // up to so many documents all sets are counted: 2^8 sums times 2^7, one is fixed
constexpr size_t kFree = 12;     // of more documents, the sets of so many at a time
constexpr size_t kLargest = 4;   // of these, which are among them in every round
constexpr size_t kCut = 12;      // documents beside those that are free of which parts may change hands
constexpr int kSetRounds = 24;
constexpr double kGain = 1.01;  // what could be gained by less than this is not looked at

class PackHalver {
 public:
  PackHalver(std::span<const AttnSlice> slices, int64_t num_rows, double tolerance, const CutCost& cuts);

  bool search();
  std::vector<RankRun> runs(int64_t num_rows) const;

 private:
  struct Sum {
    int64_t rows = 0;
    int64_t area = 0;
    uint32_t set = 0;
  };

  void start();
  void choose_free(uint64_t& state);
  template <class Visit>
  void each_halving(const double& bound, const Visit& visit) const;
  void search_free();
  std::vector<Sum> sums_of(size_t first) const;
  std::array<int, 2> heads_of(uint32_t set);
  void consider(const PackHalves& halves, uint32_t set);
  static uint8_t owner_in(uint32_t set, size_t k) { return (set >> k & 1) != 0 ? 0 : 1; }

  std::vector<PackedDocument> documents_;  // the largest first
  PackBounds bounds_;
  PackExchange exchange_;
  PackHalves all_;  // of documents, in rows[0] and area[0]
  int64_t padding_ = 0;
  std::vector<uint8_t> owner_;         // of each document, the best so far
  std::vector<size_t> free_;           // documents whose sets are counted
  std::vector<size_t> place_of_free_;  // among those that may be cut
  int fixed_heads_ = 0;                // of rank 0, documents that may be cut and are not free
  std::vector<PackExchange::Part> best_parts_;
  double best_price_ = std::numeric_limits<double>::max();
  double bound_ = best_price_;  // what an estimate, which knows nothing of rows left over, must be below
  int64_t tile_;
};

std::vector<PackedDocument> documents_of(std::span<const AttnSlice> slices) {
  std::vector<PackedDocument> documents;
  for (const AttnSlice& slice : slices) {
    documents.push_back({slice.q_range.begin, slice.q_range.size(), area_of_first(slice.q_range.size())});
  }
  std::sort(documents.begin(), documents.end(), [](const PackedDocument& a, const PackedDocument& b) {
    return a.rows != b.rows ? a.rows > b.rows : a.begin < b.begin;
  });
  return documents;
}

PackBounds bounds_of(std::span<const PackedDocument> documents, int64_t num_rows, double tolerance) {
  int64_t area = 0;
  for (const PackedDocument& document : documents) area += document.area;
  return {num_rows / 2, static_cast<int64_t>((1 + tolerance) * static_cast<double>(area) / 2)};
}

PackHalver::PackHalver(std::span<const AttnSlice> slices, int64_t num_rows, double tolerance, const CutCost& cuts)
    : documents_(documents_of(slices)),
      bounds_(bounds_of(documents_, num_rows, tolerance)),
      exchange_(documents_, bounds_, cuts),
      padding_(num_rows),
      tile_(cuts.tile_rows) {
  for (const PackedDocument& document : documents_) {
    all_.rows[0] += document.rows;
    all_.area[0] += document.area;
  }
  padding_ -= all_.rows[0];
}

// Each to the rank with less area, while it has room.
void PackHalver::start() {
  PackHalves halves;
  for (const PackedDocument& document : documents_) {
    size_t rank = halves.area[1] < halves.area[0] ? 1 : 0;
    if (halves.rows[rank] + document.rows > bounds_.rows) rank = 1 - rank;
    owner_.push_back(static_cast<uint8_t>(rank));
    halves.rows[rank] += document.rows;
    halves.area[rank] += document.area;
  }
}

// The largest and some at random; and, to be cut, the largest of the others.
void PackHalver::choose_free(uint64_t& state) {
  const bool are_all_free = documents_.size() <= kAllFree;
  free_.resize(documents_.size() - are_all_free);
  std::iota(free_.begin(), free_.end(), size_t{are_all_free});
  if (!are_all_free) {
    for (size_t k = kLargest; k < kFree; ++k) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(free_[k], free_[k + (state >> 33) % (free_.size() - k)]);
    }
    free_.resize(kFree);
  }
  std::vector<size_t>& cut = exchange_.cut();
  cut = free_;
  for (size_t i = 0; i < documents_.size() && cut.size() < free_.size() + kCut; ++i) {
    if (std::find(free_.begin(), free_.end(), i) == free_.end()) cut.push_back(i);
  }
  std::sort(cut.begin(), cut.end());
  std::vector<uint8_t>& owner = exchange_.owner_of_cut();
  owner.clear();
  for (const size_t document : cut) owner.push_back(owner_[document]);
  fixed_heads_ = static_cast<int>(std::count(owner.begin(), owner.end(), 0));
  place_of_free_.clear();
  for (const size_t document : free_) {
    fixed_heads_ -= owner_[document] == 0;
    place_of_free_.push_back(static_cast<size_t>(std::lower_bound(cut.begin(), cut.end(), document) - cut.begin()));
  }
}

// Sums of all sets of every other free document, from the first or second on.
std::vector<PackHalver::Sum> PackHalver::sums_of(size_t first) const {
  std::vector<Sum> sums(1);
  for (size_t k = first; k < free_.size(); k += 2) {
    const PackedDocument& document = documents_[free_[k]];
    const size_t count = sums.size();
    for (size_t i = 0; i < count; ++i) {
      const Sum sum = sums[i];
      sums.push_back({sum.rows + document.rows, sum.area + document.area, sum.set | uint32_t{1} << k});
    }
  }
  return sums;
}

// All ways to share out the free documents, the others as they are, that leave fewer than `bound` rows to move; `visit`
// may lower it. Of two sums one is found in a sorted list, so that no others are looked at.
template <class Visit>
void PackHalver::each_halving(const double& bound, const Visit& visit) const {
  PackHalves fixed;
  const auto add = [&](size_t document, int64_t times) {
    if (owner_[document] != 0) return;
    fixed.rows[0] += times * documents_[document].rows;
    fixed.area[0] += times * documents_[document].area;
  };
  for (size_t i = 0; i < documents_.size(); ++i) add(i, 1);
  for (const size_t document : free_) add(document, -1);
  const std::vector<Sum> firsts = sums_of(0);
  std::vector<Sum> seconds = sums_of(1);
  std::sort(seconds.begin(), seconds.end(),
            [](const Sum& a, const Sum& b) { return a.rows != b.rows ? a.rows < b.rows : a.set < b.set; });
  for (const Sum& first : firsts) {
    const int64_t rows = fixed.rows[0] + first.rows;
    const auto join = [&](const Sum& second) {
      const int64_t area = fixed.area[0] + first.area + second.area;
      // Rows that have the area that is too much are at best the first ones of a document.
      const auto surplus = static_cast<double>(std::max(area, all_.area[0] - area) - bounds_.area);
      if (2 * surplus >= bound * bound) return;
      visit(PackHalves{{rows + second.rows, all_.rows[0] - rows - second.rows}, {area, all_.area[0] - area}},
            first.set | second.set);
    };
    const auto middle = std::lower_bound(seconds.begin(), seconds.end(), bounds_.rows - rows,
                                         [](const Sum& sum, int64_t wanted) { return sum.rows < wanted; });
    for (auto it = middle; it != seconds.end(); ++it) {
      if (static_cast<double>(rows + it->rows - bounds_.rows) >= bound) break;
      join(*it);
    }
    for (auto it = middle; it != seconds.begin();) {
      --it;
      if (static_cast<double>(bounds_.rows - padding_ - rows - it->rows) >= bound) break;
      join(*it);
    }
  }
}

// First the one that looks best, so that with its price few others need a closer look.
void PackHalver::search_free() {
  double least = bound_;
  PackHalves first;
  uint32_t set_of_first = 0;
  each_halving(least, [&](const PackHalves& halves, uint32_t set) {
    const double price = estimate_exchange(halves, bounds_, heads_of(set)).price();
    if (price >= least) return;
    least = price;
    first = halves;
    set_of_first = set;
  });
  if (least < bound_) {
    consider(first, set_of_first);
    each_halving(bound_, [&](const PackHalves& halves, uint32_t set) { consider(halves, set); });
  }
}

// How many documents of either rank may be cut.
std::array<int, 2> PackHalver::heads_of(uint32_t set) {
  const int first = fixed_heads_ + std::popcount(set);
  return {first, static_cast<int>(exchange_.cut().size()) - first};
}

// Halves of whole documents, those of `set` and the fixed ones with rank 0.
void PackHalver::consider(const PackHalves& halves, uint32_t set) {
  const ExchangeEstimate least = estimate_exchange(halves, bounds_, heads_of(set));
  if (least.price() * kGain >= bound_) return;
  for (size_t k = 0; k < free_.size(); ++k) exchange_.owner_of_cut()[place_of_free_[k]] = owner_in(set, k);
  const auto first = static_cast<int64_t>(least.given) / tile_;
  for (int64_t i = std::max<int64_t>(0, first - 1); i <= first + 2; ++i) {
    if (!exchange_.make(halves, least.giver, i * tile_) || exchange_.price() >= best_price_) continue;
    best_price_ = exchange_.price();
    bound_ = best_price_ - exchange_.price_of_rest();
    best_parts_ = exchange_.parts();
    for (size_t k = 0; k < free_.size(); ++k) owner_[free_[k]] = owner_in(set, k);
  }
}

bool PackHalver::search() {
  start();
  uint64_t state = 1;
  const int rounds = documents_.size() > kAllFree ? kSetRounds : 1;
  for (int round = 0; round < rounds && best_price_ > static_cast<double>(tile_) / 16; ++round) {
    choose_free(state);
    search_free();
  }
  return best_price_ < std::numeric_limits<double>::max();
}

std::vector<RankRun> PackHalver::runs(int64_t num_rows) const {
  std::vector<RankRun> pieces;
  for (size_t i = 0; i < documents_.size(); ++i) {
    std::vector<PackExchange::Part> mine;
    std::copy_if(best_parts_.begin(), best_parts_.end(), std::back_inserter(mine),
                 [&](const PackExchange::Part& part) { return part.document == i; });
    std::sort(mine.begin(), mine.end(),
              [](const PackExchange::Part& a, const PackExchange::Part& b) { return a.begin < b.begin; });
    int64_t next = 0;
    const auto add = [&](int64_t end, int rank) {
      const int64_t begin = documents_[i].begin;
      if (next < end) pieces.push_back({static_cast<int>(begin + next), static_cast<int>(begin + end), rank});
      next = end;
    };
    for (const PackExchange::Part& part : mine) {
      add(part.begin, owner_[i]);
      add(part.end, 1 - owner_[i]);
    }
    add(documents_[i].rows, owner_[i]);
  }
  std::sort(pieces.begin(), pieces.end(), [](const RankRun& a, const RankRun& b) { return a.begin < b.begin; });
  std::array<int64_t, 2> room{bounds_.rows, bounds_.rows};
  for (const RankRun& piece : pieces) room[static_cast<size_t>(piece.rank)] -= piece.size();
  std::vector<RankRun> runs;
  const auto add = [&](int64_t end, int rank) {
    const int begin = runs.empty() ? 0 : runs.back().end;
    if (begin == end) return;
    if (!runs.empty() && runs.back().rank == rank) {
      runs.back().end = static_cast<int>(end);
    } else {
      runs.push_back({begin, static_cast<int>(end), rank});
    }
  };
  // Rows that see nothing: to the rank before them while it lacks some, then to the other.
  const auto pad = [&](int64_t end) {
    const int64_t begin = runs.empty() ? 0 : runs.back().end;
    const int rank = runs.empty() ? 0 : runs.back().rank;
    const int64_t count = std::min(end - begin, room[static_cast<size_t>(rank)]);
    room[static_cast<size_t>(rank)] -= count;
    room[static_cast<size_t>(1 - rank)] -= end - begin - count;
    add(begin + count, rank);
    add(end, 1 - rank);
  };
  for (const RankRun& piece : pieces) {
    pad(piece.begin);
    add(piece.end, piece.rank);
  }
  pad(num_rows);
  return runs;
}

}  // namespace

bool is_causal_pack(std::span<const AttnSlice> slices) {
  int64_t end = 0;
  for (const AttnSlice& slice : slices) {
    if (slice.q_range != slice.k_range || slice.q_range.begin < end) return false;
    if (slice != canonical(AttnSlice::causal(slice.q_range, slice.k_range))) return false;
    end = slice.q_range.end;
  }
  return !slices.empty();
}

std::optional<std::vector<RankRun>> bisect_pack(std::span<const AttnSlice> slices, int64_t num_rows, double tolerance,
                                                const CutCost& cuts) {
  PackHalver halver(slices, num_rows, tolerance, cuts);
  if (!halver.search()) return std::nullopt;
  return halver.runs(num_rows);
}

}  // namespace tangram
