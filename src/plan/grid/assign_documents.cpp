// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How HybridCP assigns documents. The longest documents come first. Each goes to the smallest sub-group whose ranks may
// hold it, of those to the one with the least work, as in Megatron Core's hybrid context parallelism
// (BalancedCPScheduler). Unlike there, every rank gets equally many rows. So a document that does not fit goes to a
// larger group, and the last ones are cut to fill the rest.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "core/require.hpp"
#include "plan/cost.hpp"
#include "plan/dispatch.hpp"
#include "plan/grid/documents.hpp"

namespace tangram {

namespace {

constexpr size_t kMaxAxes = 2;  // queries, and keys unless these are the same rows

/// The ranks that share a document, and how many units of it each gets.
struct Placement {
  int first_rank = 0;
  std::array<std::vector<int64_t>, kMaxAxes> shares;

  int num_ranks() const { return static_cast<int>(shares[0].size()); }
};

class Assigner {
 public:
  Assigner(const Mask& mask, const DistAttnConfig& config, int64_t unit, const std::vector<MaskDocument>& documents)
      : config_(config), documents_(documents), unit_(unit), sizes_(sub_group_sizes(config.cp_size)) {
    units_.push_back(mask.seqlen_q() / unit);
    if (!mask.is_self_attention()) units_.push_back(mask.seqlen_k() / unit);
    order_.resize(documents.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return length(a) > length(b); });
  }

  int64_t units_per_rank() const { return *std::max_element(units_.begin(), units_.end()) / config_.cp_size; }

  /// Places every document, of which one rank takes `longest` units whole.
  std::vector<Placement> place(int64_t longest) {
    reset();
    std::vector<Placement> placements(documents_.size());
    for (const size_t document : order_) placements[document] = place_one(document, longest);
    return placements;
  }

  /// Approximate seconds of a step on the slowest rank: its work, or what rings bring if that takes longer.
  double seconds(const std::vector<Placement>& placements) const;
  std::vector<OwnedRun> runs(const std::vector<Placement>& placements, size_t axis) const;
  size_t num_axes() const { return units_.size(); }

 private:
  struct Group {
    std::array<int64_t, kMaxAxes> least_free{};
    std::array<int64_t, kMaxAxes> all_free{};
    double load = 0;  // of the rank that has most
  };

  int64_t size(size_t document, size_t axis) const {
    return axis == 0 ? documents_[document].q_size() : documents_[document].k_size();
  }
  int64_t length(size_t document) const { return std::max(size(document, 0), size(document, num_axes() - 1)); }
  void reset();
  Placement place_one(size_t document, int64_t longest);
  template <class Fits>
  bool find_group(size_t first_level, Fits fits, size_t& level, size_t& group) const;
  void take(size_t document, const Placement& placement);

  const DistAttnConfig& config_;
  const std::vector<MaskDocument>& documents_;
  int64_t unit_ = 1;
  std::vector<int> sizes_;
  std::vector<int64_t> units_;              // by axis
  std::vector<size_t> order_;               // longest first
  std::vector<std::vector<Group>> groups_;  // by level; level 0 are the ranks
};

void Assigner::reset() {
  groups_.clear();
  for (const int size : sizes_) {
    Group group;
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      group.least_free[axis] = units_[axis] / config_.cp_size;
      group.all_free[axis] = group.least_free[axis] * size;
    }
    groups_.emplace_back(static_cast<size_t>(config_.cp_size / size), group);
  }
}

// The group with the least work of the smallest size at which one fits.
template <class Fits>
bool Assigner::find_group(size_t first_level, Fits fits, size_t& level, size_t& group) const {
  for (level = first_level; level < groups_.size(); ++level) {
    bool found = false;
    for (size_t g = 0; g < groups_[level].size(); ++g) {
      if (!fits(groups_[level][g], sizes_[level])) continue;
      if (found && groups_[level][g].load >= groups_[level][group].load) continue;
      found = true;
      group = g;
    }
    if (found) return true;
  }
  return false;
}

Placement Assigner::place_one(size_t document, int64_t longest) {
  size_t needed = 0;
  while (needed + 1 < sizes_.size() && length(document) > sizes_[needed] * longest) ++needed;
  const auto for_all_axes = [&](auto fits) {
    bool all = true;
    for (size_t axis = 0; axis < num_axes(); ++axis) all = all && fits(axis, size(document, axis));
    return all;
  };
  size_t level = 0, group = 0;
  const bool is_even = find_group(
      needed,
      [&](const Group& g, int ranks) {
        return for_all_axes(
            [&](size_t axis, int64_t size) { return (size + ranks - 1) / ranks <= g.least_free[axis]; });
      },
      level, group);
  if (!is_even) {
    const bool found = find_group(
        needed,
        [&](const Group& g, int) {
          return for_all_axes([&](size_t a, int64_t size) { return size <= g.all_free[a]; });
        },
        level, group);
    TANGRAM_ASSERT(found);  // all ranks together have room for all that is left
  }
  const int ranks = sizes_[level];
  Placement placement;
  placement.first_rank = static_cast<int>(group) * ranks;
  for (size_t axis = 0; axis < num_axes(); ++axis) {
    const int64_t all = size(document, axis);
    std::vector<int64_t>& shares = placement.shares[axis];
    if (is_even) {
      for (int64_t r = 0; r < ranks; ++r) shares.push_back(all / ranks + (r < all % ranks ? 1 : 0));
      continue;
    }
    // In proportion to the room of each.
    int64_t rest = all;
    const int64_t room = groups_[level][group].all_free[axis];
    for (int r = 0; r < ranks; ++r) {
      const int64_t free = groups_[0][static_cast<size_t>(placement.first_rank + r)].all_free[axis];
      shares.push_back(room == 0 ? 0 : all * free / room);
      rest -= shares.back();
    }
    for (int r = 0; rest > 0; r = (r + 1) % ranks) {
      const int64_t free = groups_[0][static_cast<size_t>(placement.first_rank + r)].all_free[axis];
      if (shares[static_cast<size_t>(r)] == free) continue;
      ++shares[static_cast<size_t>(r)];
      --rest;
    }
  }
  take(document, placement);
  return placement;
}

void Assigner::take(size_t document, const Placement& placement) {
  const double area_of_unit =
      static_cast<double>(documents_[document].area) / static_cast<double>(std::max<int64_t>(1, size(document, 0)));
  const size_t first = static_cast<size_t>(placement.first_rank), count = static_cast<size_t>(placement.num_ranks());
  for (size_t r = 0; r < count; ++r) {
    Group& rank = groups_[0][first + r];
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      rank.least_free[axis] -= placement.shares[axis][r];
      rank.all_free[axis] = rank.least_free[axis];
    }
    rank.load += area_of_unit * static_cast<double>(placement.shares[0][r]);
  }
  for (size_t level = 1; level < sizes_.size(); ++level) {
    const size_t parts = static_cast<size_t>(sizes_[level] / sizes_[level - 1]);
    const size_t ranks = static_cast<size_t>(sizes_[level]);
    for (size_t g = first / ranks; g <= (first + count - 1) / ranks; ++g) {
      Group joined = groups_[level - 1][g * parts];
      for (size_t part = 1; part < parts; ++part) {
        const Group& next = groups_[level - 1][g * parts + part];
        for (size_t axis = 0; axis < num_axes(); ++axis) {
          joined.least_free[axis] = std::min(joined.least_free[axis], next.least_free[axis]);
          joined.all_free[axis] += next.all_free[axis];
        }
        joined.load = std::max(joined.load, next.load);
      }
      groups_[level][g] = joined;
    }
  }
}

double Assigner::seconds(const std::vector<Placement>& placements) const {
  const size_t cp_size = static_cast<size_t>(config_.cp_size);
  std::vector<double> area(cp_size), received(cp_size);
  int steps = 1;
  for (size_t d = 0; d < placements.size(); ++d) {
    const Placement& placement = placements[d];
    const double area_of_unit =
        static_cast<double>(documents_[d].area) / static_cast<double>(std::max<int64_t>(1, size(d, 0)));
    const int64_t keys = size(d, num_axes() - 1);
    steps = std::max(steps, placement.num_ranks());
    for (size_t r = 0; r < static_cast<size_t>(placement.num_ranks()); ++r) {
      const size_t rank = static_cast<size_t>(placement.first_rank) + r;
      area[rank] += area_of_unit * static_cast<double>(placement.shares[0][r]);
      received[rank] += static_cast<double>((keys - placement.shares[num_axes() - 1][r]) * unit_);
    }
  }
  const double kv = static_cast<double>(kv_row_bytes(config_.heads));
  const double grads = static_cast<double>(kv_grad_row_bytes(config_.heads, config_.reduce_dtype));
  double sum = 0;
  for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
    double slowest = 0;
    for (size_t r = 0; r < cp_size; ++r) {
      const double bytes = received[r] * (kv + (pass == AttnPass::kBackward ? grads : 0));
      slowest = std::max({slowest, compute_seconds(config_, static_cast<int64_t>(area[r]), pass),
                          bytes / config_.cost.link_bytes_per_s});
    }
    sum += slowest + (steps - 1) * config_.cost.stage_overhead_s;
  }
  return sum;
}

// Halves of the shares in ascending order of ranks, then the other halves in descending order: zigzag.
std::vector<std::pair<int, int64_t>> zigzag_runs(const Placement& placement, size_t axis) {
  std::vector<std::pair<int, int64_t>> runs;
  const std::vector<int64_t>& shares = placement.shares[axis];
  const int ranks = placement.num_ranks();
  for (int r = 0; r < ranks; ++r) {
    runs.push_back({placement.first_rank + r, (shares[static_cast<size_t>(r)] + 1) / 2});
  }
  for (int r = ranks - 1; r >= 0; --r) runs.push_back({placement.first_rank + r, shares[static_cast<size_t>(r)] / 2});
  return runs;
}

std::vector<OwnedRun> Assigner::runs(const std::vector<Placement>& placements, size_t axis) const {
  std::vector<std::pair<Range, int>> assigned;  // units and their owners
  std::vector<int64_t> free(static_cast<size_t>(config_.cp_size), units_[axis] / config_.cp_size);
  for (size_t d = 0; d < placements.size(); ++d) {
    const auto shares = zigzag_runs(placements[d], axis);
    auto share = shares.begin();
    int64_t given = 0;
    for (Range rest : axis == 0 ? documents_[d].q_rows : documents_[d].k_rows) {
      while (!rest.empty()) {
        for (; given == share->second; ++share) given = 0;
        const int64_t count = std::min(rest.size(), share->second - given);
        assigned.push_back({{rest.begin, rest.begin + count}, share->first});
        free[static_cast<size_t>(share->first)] -= count;
        given += count;
        rest.begin += count;
      }
    }
  }
  std::sort(assigned.begin(), assigned.end());
  std::vector<OwnedRun> result;
  std::vector<int64_t> next_row(static_cast<size_t>(config_.cp_size));
  const auto give = [&](const Range& units, int owner) {
    if (result.empty() || result.back().owner != owner) {
      result.push_back({{units.begin * unit_, units.begin * unit_}, owner, next_row[static_cast<size_t>(owner)]});
    }
    result.back().global.end = units.end * unit_;
    next_row[static_cast<size_t>(owner)] += units.size() * unit_;
  };
  int64_t begin = 0;
  int rank = 0;
  const auto fill_until = [&](int64_t end) {  // rows of no document fill what is left
    while (begin < end) {
      while (free[static_cast<size_t>(rank)] == 0) ++rank;
      const int64_t count = std::min(end - begin, free[static_cast<size_t>(rank)]);
      give({begin, begin + count}, rank);
      free[static_cast<size_t>(rank)] -= count;
      begin += count;
    }
  };
  for (const auto& [units, owner] : assigned) {
    fill_until(units.begin);
    give(units, owner);
    begin = units.end;
  }
  fill_until(units_[axis]);
  return result;
}

Dispatch dispatch_of(const std::vector<OwnedRun>& runs, int64_t unit, int cp_size) {
  Dispatch result{cp_size, unit, {}};
  for (const OwnedRun& run : runs) result.rank_of_chunk.append(run.global.size() / unit, run.owner);
  return coarsened(result);
}

int64_t unit_of(const DistAttnConfig& config) { return std::max<int64_t>(1, config.dispatch.chunk_size); }

}  // namespace

AssignedRows assign_document_rows(const Mask& mask, const DistAttnConfig& config) {
  require(config.dispatch.algorithm == DispatchAlgorithm::kAuto,
          "make_plan: hybrid_cp assigns rows by documents (got dispatch.algorithm={})",
          to_string(config.dispatch.algorithm));
  const std::vector<MaskDocument> documents = find_documents(mask, unit_of(config));
  Assigner dealer(mask, config, unit_of(config), documents);
  const int64_t wanted = config.strategy.document_rows;
  int64_t longest = std::max<int64_t>(1, wanted / unit_of(config));
  std::vector<Placement> best;
  if (wanted > 0) {
    best = dealer.place(longest);
  } else {
    // Shorter ones balance better, longer ones save transfers.
    constexpr int64_t kFinest = 16;
    double best_s = std::numeric_limits<double>::infinity();
    for (int64_t parts = 1; parts <= kFinest && dealer.units_per_rank() >= parts; parts *= 2) {
      std::vector<Placement> placements = dealer.place(dealer.units_per_rank() / parts);
      const double seconds = dealer.seconds(placements);
      if (seconds >= best_s) continue;
      best_s = seconds;
      best = std::move(placements);
      longest = dealer.units_per_rank() / parts;
    }
  }
  std::vector<OwnedRun> q = dealer.runs(best, 0);
  std::vector<OwnedRun> k = mask.is_self_attention() ? q : dealer.runs(best, 1);
  return {std::move(q), std::move(k), longest * unit_of(config)};
}

std::pair<Dispatch, Dispatch> assign_documents(const Mask& mask, const DistAttnConfig& config) {
  const AssignedRows rows = assign_document_rows(mask, config);
  Dispatch q = dispatch_of(rows.q, unit_of(config), config.cp_size);
  Dispatch k = mask.is_self_attention() ? q : dispatch_of(rows.k, unit_of(config), config.cp_size);
  return {std::move(q), std::move(k)};
}

}  // namespace tangram
