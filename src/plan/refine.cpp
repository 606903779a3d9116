// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// State, counting and the course of the search; what is tried stands in refine_moves.cpp.
#include "plan/refine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/require.hpp"

namespace tangram {

namespace {

// Work in nanoseconds, measured.
constexpr int64_t kWorkOfProposal = 40;
constexpr int64_t kWorkOfComponent = 25;
constexpr int64_t kWorkOfPiece = 8;
constexpr int64_t kWorkOfInterval = 40;  // of keys, where chunks see many: scattered blocks
constexpr int64_t kWorkOfOpenRun = 12;   // NOTE [open keys]
constexpr int64_t kWorkOfApply = 80;
// Pieces of a component from which on they are sorted by rank to be counted.
constexpr size_t kManyPieces = 96;

// Prices grow from phase to phase, so that rows and areas are brought in line where it is cheap, and hold in the end.
constexpr int kNumPhases = 8;
constexpr double kFirstPriceOfArea = 1;
constexpr double kLastPriceOfArea = 30;
constexpr double kFirstPriceOfRow = 0.5;
constexpr double kLastPriceOfRow = 8;
constexpr double kShareOfPhases = 0.75;
// Afterwards, when every rank has its number of rows, hardly any may be off any more.
constexpr double kFinalPriceOfRow = 30;
// An overload that is still there is mended at any price, with a little more work.
constexpr int kNumMendings = 16;
constexpr double kShareOfMending = 0.04;
constexpr int kNumMendingPrices = 8;
constexpr double kHighestPriceOfArea = 1000;
// What the cuts of a component may cost. Where sending takes next to no time, they are worth more than integers hold.
constexpr double kMostRows = 1e13;

}  // namespace

Refiner::Refiner(std::span<const AttnSlice> slices, std::span<const AttnSlice> keys, int64_t chunk_size,
                 int64_t num_chunks, int cp_size, const CutCost& cuts)
    : cp_size_(cp_size),
      chunk_size_(chunk_size),
      per_rank_(num_chunks / cp_size),
      cuts_(cuts),
      tile_chunks_(static_cast<int>(std::max<int64_t>(1, cuts.tile_rows / chunk_size))),
      areas_(slices, num_chunks * chunk_size),
      components_(keys, chunk_size, static_cast<int>(num_chunks)),
      list_(components_, areas_, chunk_size, cp_size),
      mean_area_(std::max<int64_t>(1, areas_.before(num_chunks * chunk_size) / cp_size)),
      share_of_chunk_(static_cast<double>(cp_size) / static_cast<double>(per_rank_)) {}

void Refiner::start(std::span<const RankRun> map, double tolerance) {
  area_limit_ = mean_area_ + static_cast<int64_t>(static_cast<double>(mean_area_) * tolerance);
  area_of_.assign(static_cast<size_t>(cp_size_), 0);
  chunks_of_.assign(static_cast<size_t>(cp_size_), 0);
  for (const RankRun& run : map) {
    area_of_[static_cast<size_t>(run.rank)] += area(run.begin, run.end);
    chunks_of_[static_cast<size_t>(run.rank)] += run.size();
  }
  list_.assign(map);
  moves_.clear();
  split_.clear();
  split_slot_.assign(components_.size(), -1);
  rows_.assign(components_.size(), 0);
  remote_rows_ = 0;
  rank_rows_.assign(components_.size(), {});
  new_rank_rows_.clear();
  a_ = b_ = -1;  // no move is tried: all ranks are counted
  for (size_t i = 0; i < components_.size(); ++i) {
    if (keeps_rank_rows(i)) rank_rows_[i].assign(static_cast<size_t>(cp_size_), kUnknown);
    set_rows(i, count_rows(i));
    std::replace(rank_rows_[i].begin(), rank_rows_[i].end(), kUnknown, int64_t{0});  // ranks without rows of it
  }
}

void Refiner::set_prices(const Prices& prices) {
  const double num_rows = static_cast<double>(per_rank_ * cp_size_ * chunk_size_);
  price_of_chunk_ = prices.row * static_cast<double>(chunk_size_);
  price_of_area_ = prices.area * num_rows / static_cast<double>(mean_area_);
}

double Refiner::total() const {
  double sum = static_cast<double>(remote_rows_);
  for (int rank = 0; rank < cp_size_; ++rank) sum += price_of(rank);
  return sum;
}

// Next to nothing moves, and rows and areas are as they must be.
bool Refiner::is_good(double negligible_rows) const {
  return static_cast<double>(remote_rows_) <= negligible_rows && total() <= negligible_rows;
}

void Refiner::set_rows(size_t component, int64_t rows) {
  remote_rows_ += rows - rows_[component];
  rows_[component] = rows;
  int& slot = split_slot_[component];
  if (rows > 0 && slot < 0) {
    slot = static_cast<int>(split_.size());
    split_.push_back(component);
  } else if (rows == 0 && slot >= 0) {
    split_[static_cast<size_t>(slot)] = split_.back();
    split_slot_[split_.back()] = slot;
    split_.pop_back();
    slot = -1;
  }
}

// Adds chunks of a run to pieces_ as they are after moves_.
void Refiner::add_piece(const RunList::Run& run, int begin, int end) {
  const auto add = [&](int from, int to, int rank) {
    if (from >= to) return;
    if (!pieces_.empty() && pieces_.back().rank == rank) {
      pieces_.back().end = to;
    } else {
      pieces_.push_back({from, to, rank});
    }
  };
  for (const Move& move : moves_) {
    if (&list_[move.run] != &run) continue;
    add(begin, std::min(move.begin, end), run.rank);
    add(std::max(begin, move.begin), std::min(move.end, end), move.to);
    begin = std::max(begin, move.end);
    break;
  }
  add(begin, end, run.rank);
}

void Refiner::collect_pieces(size_t index) {
  const MaskComponent& component = components_[index];
  pieces_.clear();
  int run = list_.first_of(index);
  if (component.shares_first_chunk()) add_piece(list_[list_[run].before], component.first, component.own);
  const int last = list_.last_of(index);
  for (;; run = list_[run].after) {
    add_piece(list_[run], list_[run].begin, list_[run].end);
    if (run == last) break;
  }
}

// The nearest chunk at which a tile of the component ends.
int Refiner::whole_tiles(const MaskComponent& component, int chunk) const {
  const int tiles = (chunk - component.first + tile_chunks_ / 2) / tile_chunks_;
  return component.first + tiles * tile_chunks_;
}

// What a cut before `chunk` costs.
int64_t Refiner::cut_rows(const MaskComponent& component, int chunk) const {
  if ((chunk - component.first) % tile_chunks_ == 0) return 0;
  const auto keys = static_cast<double>(areas_.keys_of(chunk * chunk_size_ - 1));
  return static_cast<int64_t>(std::min(keys * cuts_.rows_per_key, kMostRows));
}

// What the cuts between pieces_ cost.
int64_t Refiner::count_cuts(const MaskComponent& component) const {
  int64_t rows = 0;
  for (size_t i = 1; i < pieces_.size(); ++i) rows += cut_rows(component, pieces_[i].begin);
  return rows;
}

// Whether moves_ can be counted by the runs of their two ranks alone (NOTE [open keys]). Where the chunk that a
// component shares with the one before moves, all its pieces are counted: they are few.
bool Refiner::counts_two_ranks(size_t index) const {
  if (a_ < 0 || !components_[index].has_open_keys) return false;
  return std::all_of(moves_.begin(), moves_.end(), [&](const Move& move) { return component_of(move) == index; });
}

// The rank of the last chunk of a run after moves_.
int Refiner::rank_of_end(int run) const {
  for (const Move& move : moves_) {
    if (move.run == run) return move.end == list_[run].end ? move.to : list_[run].rank;
  }
  return list_[run].rank;
}

// Rows that a rank lacks of a component after moves_, all of which lie in the component.
int64_t Refiner::lacking_rows(size_t index, int rank) {
  const MaskComponent& component = components_[index];
  owned_.clear();
  const auto add = [&](int begin, int end) {
    if (begin < end) owned_.push_back({begin, end});
  };
  if (component.shares_first_chunk() && rank_of_end(list_[list_.first_of(index)].before) == rank) {
    add(component.first, component.own);
  }
  for (const int run : list_.of_rank(rank)) {
    if (static_cast<size_t>(list_[run].component) == index) add(list_[run].begin, list_[run].end);
  }
  for (const Move& move : moves_) {
    if (move.to == rank) {
      add(move.begin, move.end);
      continue;
    }
    const auto of_run = [&](const ChunkRun& run) { return run.begin <= move.begin && move.begin < run.end; };
    const auto from = std::find_if(owned_.begin(), owned_.end(), of_run);
    const int end = std::exchange(from->end, move.begin);
    if (from->begin == from->end) {
      *from = {move.end, end};
      if (from->begin == from->end) {
        *from = owned_.back();
        owned_.pop_back();
      }
    } else {
      add(move.end, end);
    }
  }
  std::sort(owned_.begin(), owned_.end(), [](const ChunkRun& a, const ChunkRun& b) { return a.begin < b.begin; });
  work_ += kWorkOfOpenRun * static_cast<int64_t>(owned_.size());
  return components_.remote_rows(index, owned_);
}

// Cuts come and go at the ends of moves alone.
int64_t Refiner::change_of_cuts(const MaskComponent& component) const {
  int64_t rows = 0;
  const auto count = [&](int chunk, bool was_cut, bool is_cut) {
    if (was_cut != is_cut) rows += (is_cut ? 1 : -1) * cut_rows(component, chunk);
  };
  for (const Move& move : moves_) {
    const RunList::Run& run = list_[move.run];
    if (move.begin > run.begin) {
      count(move.begin, false, true);
    } else if (move.begin > component.own || component.shares_first_chunk()) {
      count(move.begin, list_[run.before].rank != run.rank, rank_of_end(run.before) != move.to);
    }
    if (move.end < run.end) {
      count(move.end, false, true);
    } else if (move.end < component.last) {
      const auto begins = [&](const Move& other) { return other.run == run.after && other.begin == move.end; };
      if (std::any_of(moves_.begin(), moves_.end(), begins)) continue;  // counted with that one
      count(move.end, run.rank != list_[run.after].rank, move.to != list_[run.after].rank);
    }
  }
  return rows;
}

int64_t Refiner::count_rows_of_two(size_t index) {
  const std::vector<int64_t>& kept = rank_rows_[index];
  const int64_t of_a = lacking_rows(index, a_), of_b = lacking_rows(index, b_);
  new_rank_rows_.push_back({of_a, of_b});
  work_ += kWorkOfComponent;
  return rows_[index] + of_a + of_b - kept[static_cast<size_t>(a_)] - kept[static_cast<size_t>(b_)] +
         (tile_chunks_ > 1 ? change_of_cuts(components_[index]) : 0);
}

// Remote rows of a component after moves_, and what its cuts cost.
int64_t Refiner::count_rows(size_t index) {
  if (counts_two_ranks(index)) return count_rows_of_two(index);
  new_rank_rows_.push_back({});
  if (!components_[index].sees_keys) return 0;
  collect_pieces(index);
  work_ += kWorkOfComponent;
  if (pieces_.size() == 1) return 0;
  int64_t rows = tile_chunks_ > 1 ? count_cuts(components_[index]) : 0;
  std::vector<int64_t>& kept = rank_rows_[index];
  if (!kept.empty()) work_ += kWorkOfPiece * static_cast<int64_t>(pieces_.size());
  // Rows that the rank of piece `first`, its first one, lacks; owned_ are its pieces.
  const auto count_rank = [&](size_t first) {
    const int rank = pieces_[first].rank;
    if (!kept.empty() && rank != a_ && rank != b_ && kept[static_cast<size_t>(rank)] != kUnknown) {
      rows += kept[static_cast<size_t>(rank)];
      return;
    }
    const int64_t looked_at = components_.num_looked_at();
    const int64_t lacks = components_.remote_rows(index, owned_);
    rows += lacks;
    if (rank == a_) new_rank_rows_.back().of_a = lacks;
    if (rank == b_) new_rank_rows_.back().of_b = lacks;
    if (!kept.empty() && rank != a_ && rank != b_) kept[static_cast<size_t>(rank)] = lacks;
    work_ += kWorkOfInterval * (components_.num_looked_at() - looked_at);
    work_ +=
        kWorkOfPiece * static_cast<int64_t>(kept.empty() ? pieces_.size() - first + 2 * owned_.size() : owned_.size());
  };
  if (pieces_.size() > kManyPieces) {
    for_each_rank_of_many(count_rank);
    return rows;
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const int rank = pieces_[i].rank;
    const auto same = [&](const RankRun& piece) { return piece.rank == rank; };
    if (std::any_of(pieces_.begin(), pieces_.begin() + static_cast<int64_t>(i), same)) continue;
    owned_.clear();
    for (size_t k = i; k < pieces_.size(); ++k) {
      if (pieces_[k].rank == rank) owned_.push_back({pieces_[k].begin, pieces_[k].end});
    }
    count_rank(i);
  }
  return rows;
}

// Looking through all pieces for each rank's few would take time quadratic in their number. Only `work_` still counts
// that, so that plans stay what they are.
template <class Visit>
void Refiner::for_each_rank_of_many(const Visit& visit) {
  order_.resize(pieces_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return pieces_[a].rank < pieces_[b].rank; });
  for (size_t begin = 0, end = 0; begin < order_.size(); begin = end) {
    owned_.clear();
    for (; end < order_.size() && pieces_[order_[end]].rank == pieces_[order_[begin]].rank; ++end) {
      owned_.push_back({pieces_[order_[end]].begin, pieces_[order_[end]].end});
    }
    visit(order_[begin]);
  }
}

double Refiner::change(double limit) {
  int64_t chunks = 0;  // that rank b_ gets
  int64_t gained = 0;
  touched_.clear();
  const auto touch = [&](size_t component) {
    if (std::find(touched_.begin(), touched_.end(), component) == touched_.end()) touched_.push_back(component);
  };
  for (const Move& move : moves_) {
    const int sign = move.to == b_ ? 1 : -1;
    chunks += sign * move.size();
    gained += sign * area(move);
    const size_t component = component_of(move);
    touch(component);
    if (move.end == components_[component].last && component + 1 < components_.size() &&
        components_[component + 1].shares_first_chunk()) {
      touch(component + 1);
    }
  }
  const size_t a = static_cast<size_t>(a_);
  const size_t b = static_cast<size_t>(b_);
  double result = price_of(chunks_of_[a] - chunks, area_of_[a] - gained) +
                  price_of(chunks_of_[b] + chunks, area_of_[b] + gained) - price_of(a_) - price_of(b_);
  for (const size_t component : touched_) result -= static_cast<double>(rows_[component]);
  new_rows_.clear();
  new_rank_rows_.clear();
  for (const size_t component : touched_) {
    if (result >= limit) return result;
    new_rows_.push_back(count_rows(component));
    result += static_cast<double>(new_rows_.back());
  }
  return result;
}

// Makes moves_ real; new_rows_ are those of touched_ after it.
void Refiner::apply() {
  work_ += kWorkOfApply;
  for (const Move& move : moves_) {
    const int64_t size = area(move);
    const size_t from = static_cast<size_t>(list_[move.run].rank);
    const size_t to = static_cast<size_t>(move.to);
    area_of_[from] -= size;
    area_of_[to] += size;
    chunks_of_[from] -= move.size();
    chunks_of_[to] += move.size();
    list_.give(move.run, move.begin, move.end, move.to);
  }
  moves_.clear();
  for (size_t i = 0; i < touched_.size(); ++i) {
    list_.join(touched_[i]);
    set_rows(touched_[i], new_rows_[i]);
    std::vector<int64_t>& kept = rank_rows_[touched_[i]];
    if (kept.empty()) continue;
    kept[static_cast<size_t>(a_)] = new_rank_rows_[i].of_a;
    kept[static_cast<size_t>(b_)] = new_rank_rows_[i].of_b;
  }
}

void Refiner::search(int64_t until, const RefineOptions& options) {
  const double max_work = static_cast<double>(std::max<int64_t>(1, options.max_work));
  for (bool is_done = is_good(options.negligible_rows); work_ < until && !is_done;) {
    double limit = 0;
    if (options.heat_rows > 0) {
      // A worse change is taken with probability exp(-change / heat) (Metropolis and others, 1953).
      const double heat = options.heat_rows * std::max(0.0, 1 - static_cast<double>(work_) / max_work);
      const double uniform = (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
      limit = -std::log(uniform) * heat;
    }
    work_ += kWorkOfProposal;
    moves_.clear();
    if (!propose() || moves_.empty()) continue;
    if (change(limit) >= limit) continue;
    apply();
    is_done = is_good(options.negligible_rows);
  }
  moves_.clear();
}

// Gives every rank as many chunks as it must have, by the cheapest moves of parts of runs.
void Refiner::equalise() {
  while (true) {
    const auto most = std::max_element(chunks_of_.begin(), chunks_of_.end());
    const auto least = std::min_element(chunks_of_.begin(), chunks_of_.end());
    if (*most == per_rank_ && *least == per_rank_) return;
    a_ = static_cast<int>(most - chunks_of_.begin());
    b_ = static_cast<int>(least - chunks_of_.begin());
    const int missing = static_cast<int>(std::min(*most - per_rank_, per_rank_ - *least));
    Move best;
    double best_price = std::numeric_limits<double>::max();
    const auto consider = [&](int run, int begin, int end) {
      moves_.assign(1, {run, begin, end, b_});
      const double rest = static_cast<double>((missing - (end - begin)) * chunk_size_);
      const double price = change(best_price) + rest;
      if (price >= best_price) return;
      best_price = price;
      best = moves_[0];
    };
    for (const int run : list_.of_rank(a_)) {
      const int begin = list_[run].begin;
      const int end = list_[run].end;
      const int count = std::min(missing, end - begin);
      consider(run, begin, begin + count);
      if (count < end - begin) consider(run, end - count, end);
    }
    moves_.assign(1, best);
    change(std::numeric_limits<double>::max());
    apply();
  }
}

Refiner::Score Refiner::current() const {
  const int64_t largest = *std::max_element(area_of_.begin(), area_of_.end());
  const double overload = static_cast<double>(largest - area_limit_) / static_cast<double>(mean_area_);
  return {remote_rows_, std::max(0.0, overload)};
}

Refiner::Score Refiner::score(std::span<const RankRun> map, double tolerance) {
  start(map, tolerance);
  return current();
}

Refiner::Score Refiner::run(std::vector<RankRun>& map, const RefineOptions& options) {
  start(map, options.tolerance);
  state_ = options.seed;
  work_ = 0;
  const Score initial = current();
  set_prices({kHighestPriceOfArea, kFinalPriceOfRow});
  const double initial_total = total();
  const auto is_equal = [&](int64_t count) { return count == per_rank_; };
  const bool was_equal = std::all_of(chunks_of_.begin(), chunks_of_.end(), is_equal);
  const double max_work = static_cast<double>(options.max_work);
  const auto between = [](double first, double last, int step, int num_steps) {
    return first * std::pow(last / first, static_cast<double>(step) / (num_steps - 1));
  };
  for (int i = 0; options.is_loose_at_first && i < kNumPhases; ++i) {
    set_prices({between(kFirstPriceOfArea, kLastPriceOfArea, i, kNumPhases),
                between(kFirstPriceOfRow, kLastPriceOfRow, i, kNumPhases)});
    search(static_cast<int64_t>(max_work * kShareOfPhases * (i + 1) / kNumPhases), options);
  }
  set_prices({kLastPriceOfArea, kFinalPriceOfRow});
  equalise();
  search(options.max_work, options);
  equalise();
  is_mending_ = true;
  for (int i = 0; options.mends && i < kNumMendings && current().overload > 0; ++i) {
    set_prices({between(kLastPriceOfArea, kHighestPriceOfArea, std::min(i, kNumMendingPrices - 1), kNumMendingPrices),
                kFinalPriceOfRow});
    search(work_ + static_cast<int64_t>(max_work * kShareOfMending), options);
    equalise();
  }
  is_mending_ = false;
  set_prices({kHighestPriceOfArea, kFinalPriceOfRow});
  if (was_equal && total() > initial_total) return initial;
  map = list_.runs();
  return current();
}

}  // namespace tangram
