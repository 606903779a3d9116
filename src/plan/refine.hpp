// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Improves a dispatch by exchanging runs of chunks between ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/slice.hpp"

namespace tangram {

/// What the search may do. The same search with more work and some heat serves as the offline one.
struct RefineOptions {
  /// Effort, counted in chunks looked at (about a nanosecond each), so that equal input gives equal output anywhere.
  int64_t max_work = 0;
  /// Areas up to (1 + tolerance) * mean count as balanced.
  double tolerance = 0.005;
  uint64_t seed = 1;
  /// Rows that a proposal may lose at the start and still be taken at times; cools to 0. 0 only ever improves.
  double heat_rows = 0;
};

/// A dispatch with its remote rows by component of the mask (query rows and keys that no slice connects with others,
/// such as a document): a move changes few components, so that trying one is cheap.
class Refiner {
 public:
  /// Self-attention over `num_chunks` chunks; slices canonical and sorted by first query row.
  Refiner(std::span<const AttnSlice> slices, int64_t chunk_size, std::vector<int64_t> chunk_areas, int cp_size);

  /// Searches from `ranks` (equally many chunks each) and returns the best map found. Deterministic.
  std::vector<int> run(std::vector<int> ranks, const RefineOptions& options);

  /// Remote rows of a map, and what is worse than `tolerance` in its balance in units of the mean area.
  struct Score {
    int64_t remote_rows = 0;
    double overload = 0;
  };
  Score score(const std::vector<int>& ranks, double tolerance);

  size_t num_components() const { return components_.size(); }

 private:
  // Key rows [rows.begin, rows.end) that only the chunks [first, last) see.
  struct Component {
    Range rows;
    int first = 0;
    int last = 0;
    size_t first_entry = 0;  // of the chunk `first` in entries_
  };
  // Key ranges of one chunk in one component: keys_[begin, end).
  struct Entry {
    size_t begin = 0;
    size_t end = 0;
  };
  struct Part {
    int begin = 0;
    int end = 0;
  };

  void find_components(std::span<const AttnSlice> slices);
  void collect_keys(std::span<const AttnSlice> slices);
  void start(std::vector<int> ranks, double tolerance);
  void count_remote_rows(bool keep);
  int64_t remote_rows_of(size_t component, int rank);
  int64_t excess(int64_t area) const;
  Part run_around(int chunk);
  bool propose(double limit);
  bool choose_gift(Part& part, int& a, int& b);
  void keep_exchange(int a, int b, int64_t rows_change);
  void update_split(size_t index);
  Part random_run(int from, int count, const Part& moved);
  bool take_back(int from, int to, int count, int64_t goal, const Part& moved);
  int64_t area(const Part& part) const {
    return prefix_[static_cast<size_t>(part.end)] - prefix_[static_cast<size_t>(part.begin)];
  }
  void move(const Part& part, int to);
  bool count_touched(int a, int b, double limit, int64_t& rows_change);
  void touch(const Part& part);
  uint64_t random();
  int random_below(int limit) { return static_cast<int>(random() % static_cast<uint64_t>(limit)); }

  int64_t chunk_size_;
  int cp_size_;
  int num_chunks_;
  std::vector<int64_t> prefix_;  // of chunk areas
  std::vector<Component> components_;
  std::vector<int> component_of_chunk_;  // the first one that the chunk has rows of, -1 if none
  std::vector<Entry> entries_;
  std::vector<Range> keys_;

  std::vector<int> ranks_;
  std::vector<std::vector<int>> chunks_of_;  // in any order
  std::vector<int> slot_;                    // of each chunk in its rank's list
  std::vector<int64_t> area_of_;
  std::vector<int64_t> cost_;  // [component * cp_size + rank]
  std::vector<size_t> split_;  // components that lie on more than one rank
  int64_t remote_rows_ = 0;
  int64_t area_limit_ = 0;
  int64_t excess_weight_ = 1;
  int64_t work_ = 0;
  int64_t mean_area_ = 1;
  uint64_t state_ = 1;
  // Of the move that is being tried.
  std::vector<Part> given_;
  std::vector<Part> taken_;
  std::vector<size_t> touched_;
  std::vector<int64_t> new_costs_;
  std::vector<Range> scratch_;
};

}  // namespace tangram
