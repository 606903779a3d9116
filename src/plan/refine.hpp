// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Improves a dispatch by moving runs of chunks between ranks. Rows and area of a rank may leave their bounds for a
// while, at a price.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/mask_components.hpp"
#include "plan/row_areas.hpp"
#include "plan/run_list.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// Limits of the search. The same search with more work serves as the offline one.
struct RefineOptions {
  /// Effort in units of about a nanosecond, counted and not timed, so that equal input gives equal output anywhere.
  int64_t max_work = 0;
  /// Areas up to (1 + tolerance) * mean count as balanced.
  double tolerance = 0.005;
  uint64_t seed = 1;
  /// Rows that a proposal may lose at the start and still be taken at times; cools to 0. 0 only ever improves.
  double heat_rows = 0;
  /// Remote rows and prices, in rows, up to which there is nothing left to gain.
  double negligible_rows = 0;
  /// Spends up to 0.64 times the work in addition where areas are still above the tolerance in the end.
  bool mends = true;
  /// Lets rows and areas leave their bounds cheaply at first. Otherwise what is balanced stays so.
  bool is_loose_at_first = true;
};

/// Cost of cutting rows with common keys where no tile of the kernels ends.
struct CutCost {
  int64_t tile_rows = 1;    ///< tiles are counted from where a component begins
  double rows_per_key = 0;  ///< remote rows that are worth as much as the cut, for every key seen there
};

/// A dispatch as runs, with its remote rows by component. A move changes few components, so trying one costs a look at
/// their runs, however long they are.
class Refiner {
 public:
  /// Slices of a mask with `num_chunks` chunks of query rows, canonical and sorted by first row, kept by reference.
  /// `keys`: what of them lies between rows that are dispatched: all of self-attention, nothing where only areas count.
  Refiner(std::span<const AttnSlice> slices, std::span<const AttnSlice> keys, int64_t chunk_size, int64_t num_chunks,
          int cp_size, const CutCost& cuts = {});
  Refiner(std::span<const AttnSlice> slices, bool is_self_attention, int64_t chunk_size, int64_t num_chunks,
          int cp_size, const CutCost& cuts = {})
      : Refiner(slices, is_self_attention ? slices : std::span<const AttnSlice>(), chunk_size, num_chunks, cp_size,
                cuts) {}
  Refiner(const Refiner&) = delete;
  Refiner& operator=(const Refiner&) = delete;

  /// Remote rows of a map, and what is worse than `tolerance` in its balance in units of the mean area.
  struct Score {
    int64_t remote_rows = 0;
    double overload = 0;
  };

  /// Searches from `map`, which becomes the best map found, with equally many chunks for each rank: in `map` they may
  /// differ. Deterministic.
  Score run(std::vector<RankRun>& map, const RefineOptions& options);

  Score score(std::span<const RankRun> map, double tolerance);

  /// Components that have rows.
  size_t num_components() const { return components_.num_seeing(); }

 private:
  static constexpr int64_t kWorkOfSample = 12;

  // Chunks of one run that change their rank.
  struct Move {
    int run = 0;
    int begin = 0;
    int end = 0;
    int to = 0;

    int size() const { return end - begin; }
  };
  // Prices in rows.
  struct Prices {
    double area = 1;  // of an overload by the mean area, in multiples of all rows
    double row = 1;   // of a row too many or too few
  };

  int64_t area(int begin, int end) const {
    return areas_.before(end * chunk_size_) - areas_.before(begin * chunk_size_);
  }
  int64_t area(const Move& move) const {
    const RunList::Run& run = list_[move.run];
    return move.size() == run.size() ? run.area : area(move.begin, move.end);
  }
  size_t component_of(const Move& move) const { return static_cast<size_t>(list_[move.run].component); }

  void start(std::span<const RankRun> map, double tolerance);
  Score current() const;
  // Grows faster than the rows that are off, or a few ranks that see most would be left with too few rows in the end.
  // `off`: chunks too many or too few; `excess`: area above the limit, negative below it.
  double price(double off, double excess) const {
    const double missed = std::abs(off);
    return missed * (1 + missed * share_of_chunk_) * price_of_chunk_ + std::max(0.0, excess) * price_of_area_;
  }
  double price_of(int64_t num_chunks, int64_t area) const {
    return price(static_cast<double>(num_chunks - per_rank_), static_cast<double>(area - area_limit_));
  }
  double price_of(int rank) const {
    return price_of(chunks_of_[static_cast<size_t>(rank)], area_of_[static_cast<size_t>(rank)]);
  }
  void set_prices(const Prices& prices);
  double total() const;
  bool is_good(double negligible_rows) const;

  // The change of rows and prices that moves_ would make, or `limit` or more, found early.
  double change(double limit);
  int64_t count_rows(size_t component);
  /// Components of shared prefixes, which many ranks share and whose keys take long to count.
  bool keeps_rank_rows(size_t component) const {
    const MaskComponent& of = components_[component];
    return of.sees_keys && !of.is_monotone && of.num_words == 0;
  }
  bool counts_two_ranks(size_t component) const;
  int64_t count_rows_of_two(size_t component);
  int64_t lacking_rows(size_t component, int rank);
  int rank_of_end(int run) const;
  int64_t change_of_cuts(const MaskComponent& component) const;
  int64_t cut_rows(const MaskComponent& component, int chunk) const;
  template <class Visit>
  void for_each_rank_of_many(const Visit& visit);
  int64_t count_cuts(const MaskComponent& component) const;
  int whole_tiles(const MaskComponent& component, int chunk) const;
  int good_cut(const RunList::Run& run, int chunk);
  void collect_pieces(size_t component);
  void add_piece(const RunList::Run& run, int begin, int end);
  void apply();
  void set_rows(size_t component, int64_t rows);

  // Proposals: fill moves_, all of them between ranks a_ and b_; false when there is none this time.
  bool propose();
  bool propose_in_split();
  bool propose_mending();
  bool propose_relief(int overloaded);
  bool propose_swap();
  bool shift_cut(int run, int other);
  void give_all(size_t component, int from, int to);
  void give_part(int run, int to);
  void release();
  bool add_move(int run, int begin, int end, int to);
  int random_run(int rank) {
    const std::vector<int>& runs = list_.of_rank(rank);
    work_ += kWorkOfSample;
    return runs.empty() ? -1 : runs[static_cast<size_t>(random_below(runs.size()))];
  }

  void equalise();
  void search(int64_t until, const RefineOptions& options);

  // Drawn in both sources, for most of what is tried: calls would take a tenth of the search.
  uint64_t random() {
    // splitmix64 (Steele, Lea, Flood, 2014)
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int random_below(size_t limit) { return static_cast<int>((random() >> 32) * static_cast<uint64_t>(limit) >> 32); }
  int random_size(int limit);

  int cp_size_;
  int64_t chunk_size_;
  int64_t per_rank_;
  CutCost cuts_;
  int tile_chunks_;  // chunks of a tile
  RowAreas areas_;
  MaskComponents components_;
  RunList list_;

  std::vector<int64_t> area_of_;
  std::vector<int64_t> chunks_of_;
  std::vector<int64_t> rows_;  // remote rows of each component
  // Remote rows of each rank in a component that keeps_rank_rows(), so that a move recounts its two ranks alone; else
  // empty.
  static constexpr int64_t kUnknown = -1;
  std::vector<std::vector<int64_t>> rank_rows_;
  std::vector<size_t> split_;    // components that have some
  std::vector<int> split_slot_;  // of each component in split_, -1 if none
  int64_t remote_rows_ = 0;
  int64_t mean_area_ = 1;
  int64_t area_limit_ = 0;
  double share_of_chunk_ = 0;  // of the mean rows of a rank, times their number
  double price_of_chunk_ = 0;  // of a chunk too many or too few, in rows
  double price_of_area_ = 0;   // of area above the limit, in rows
  bool is_mending_ = false;    // only balance is left to do
  int64_t work_ = 0;
  uint64_t state_ = 1;
  // The change that is being tried.
  int a_ = 0;
  int b_ = 0;
  std::vector<Move> moves_;
  std::vector<size_t> touched_;
  std::vector<int64_t> new_rows_;
  struct RowsOfTwo {
    int64_t of_a = 0;
    int64_t of_b = 0;
  };
  std::vector<RowsOfTwo> new_rank_rows_;  // as new_rows_
  std::vector<RankRun> pieces_;
  std::vector<ChunkRun> owned_;
  std::vector<size_t> order_;
};

}  // namespace tangram
