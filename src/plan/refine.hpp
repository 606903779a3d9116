// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Improves a dispatch by exchanging runs of chunks between ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/mask_components.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// What the search may do. The same search with more work and some heat serves as the offline one.
struct RefineOptions {
  /// Effort in units of about a nanosecond, counted and not timed, so that equal input gives equal output anywhere.
  int64_t max_work = 0;
  /// Areas up to (1 + tolerance) * mean count as balanced.
  double tolerance = 0.005;
  uint64_t seed = 1;
  /// Rows that a proposal may lose at the start and still be taken at times; cools to 0. 0 only ever improves.
  double heat_rows = 0;
};

/// A dispatch as runs of chunks, each of one rank and one component of the mask, with its remote rows by component and
/// rank: an exchange of runs changes few components, so that trying one costs what their runs cost to look at, however
/// long they are.
class Refiner {
 public:
  /// Self-attention over `num_chunks` chunks; slices canonical and sorted by first query row.
  Refiner(std::span<const AttnSlice> slices, int64_t chunk_size, std::vector<int64_t> chunk_areas, int cp_size);

  /// Remote rows of a map, and what is worse than `tolerance` in its balance in units of the mean area.
  struct Score {
    int64_t remote_rows = 0;
    double overload = 0;
  };

  /// Searches from `ranks` (equally many chunks each), which become the best map found. Deterministic.
  Score run(std::vector<int>& ranks, const RefineOptions& options);

  Score score(const std::vector<int>& ranks, double tolerance);

  /// Components that have rows.
  size_t num_components() const { return components_.num_seeing(); }

 private:
  // Runs are kept at their first chunk c: rank_[c], end_[c], their slot in runs_of_[rank]; and at their last chunk:
  // begin_. What stands at other chunks has no meaning.
  int& at(std::vector<int>& values, int chunk) { return values[static_cast<size_t>(chunk)]; }
  int64_t area(const ChunkRun& run) const {
    return prefix_[static_cast<size_t>(run.end)] - prefix_[static_cast<size_t>(run.begin)];
  }

  void start(const std::vector<int>& ranks, double tolerance);
  void store(std::vector<int>& ranks) const;
  Score current() const;
  void count_remote_rows(bool keep);
  int64_t excess(int64_t area) const;
  int64_t total() const;

  void add_run(const ChunkRun& run, int rank);
  void drop_run(int begin);
  void move(const ChunkRun& part, int to);
  void update_split(size_t index);

  bool propose(double limit);
  bool choose_gift();
  int heavy_run_begin(int rank);
  bool take_back(int count, int64_t goal);
  bool random_stretch(int rank, int count);
  int extend(int first, int count, bool forwards, std::vector<ChunkRun>& parts);
  bool count_touched(double limit, int64_t& rows_change);
  void touch(const ChunkRun& part);
  void collect_owned(size_t index, int rank, bool tried);
  void collect(const ChunkRun& run, int run_rank, int rank, bool tried);

  uint64_t random();
  int random_below(size_t limit) { return static_cast<int>(random() % static_cast<uint64_t>(limit)); }

  int cp_size_;
  int64_t num_rows_;
  std::vector<int64_t> prefix_;  // of chunk areas
  MaskComponents components_;

  std::vector<int> rank_;
  std::vector<int> begin_;
  std::vector<int> end_;
  std::vector<int> slot_;
  std::vector<std::vector<int>> runs_of_;  // first chunks, in any order
  std::vector<int64_t> area_of_;
  std::vector<int64_t> cost_;    // [component * cp_size + rank]
  std::vector<size_t> split_;    // components that lie on more than one rank
  std::vector<int> split_slot_;  // of each component in split_, -1 if none
  int64_t remote_rows_ = 0;
  int64_t area_limit_ = 0;
  double excess_weight_ = 1;
  int64_t work_ = 0;
  int64_t mean_area_ = 1;
  uint64_t state_ = 1;
  // The exchange that is being tried: `given_` goes from rank a_ to rank b_, `taken_` the other way. Each is a part of
  // one run.
  int a_ = 0;
  int b_ = 0;
  std::vector<ChunkRun> given_;
  std::vector<ChunkRun> taken_;
  std::vector<ChunkRun> stretch_;
  std::vector<ChunkRun> best_stretch_;
  std::vector<size_t> touched_;
  std::vector<int64_t> new_costs_;
  std::vector<ChunkRun> owned_;
};

}  // namespace tangram
