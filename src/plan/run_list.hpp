// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A dispatch under change: runs of chunks, each of one rank and one component of the mask, as a list in sequence order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/mask_components.hpp"
#include "plan/row_areas.hpp"

namespace tangram {

/// Neighbouring chunks of one rank.
struct RankRun {
  int begin = 0;
  int end = 0;
  int rank = 0;

  int size() const { return end - begin; }
  friend constexpr bool operator==(const RankRun&, const RankRun&) = default;
};

/// Every operation but `assign` and `runs` takes constant time. Runs have numbers, which stay while a run lives.
class RunList {
 public:
  struct Run {
    int begin = 0;
    int end = 0;
    int rank = 0;
    int component = 0;
    int before = -1;  // neighbours in the sequence, -1 at its ends
    int after = -1;
    int slot = 0;      // in of_rank(rank)
    int64_t area = 0;  // kept, because the search asks for it far more often than runs change

    int size() const { return end - begin; }
  };

  /// Keeps components and areas by reference.
  RunList(const MaskComponents& components, const RowAreas& areas, int64_t chunk_size, int cp_size)
      : components_(components),
        areas_(areas),
        chunk_size_(chunk_size),
        first_(components.size()),
        of_rank_(static_cast<size_t>(cp_size)) {}

  /// Takes over a map: `map` covers all chunks in order.
  void assign(std::span<const RankRun> map);
  /// The map, neighbours of one rank joined.
  std::vector<RankRun> runs() const;

  const Run& operator[](int run) const { return runs_[static_cast<size_t>(run)]; }
  const std::vector<int>& of_rank(int rank) const { return of_rank_[static_cast<size_t>(rank)]; }
  int first_of(size_t component) const { return first_[component]; }
  int last_of(size_t component) const {
    return component + 1 < first_.size() ? (*this)[first_[component + 1]].before : tail_;
  }

  /// Cuts chunks [begin, end) out of a run, which they lie in, and gives them to another rank. Leaves neighbours of one
  /// rank apart.
  void give(int run, int begin, int end, int rank);
  /// Joins neighbours of one rank in a component.
  void join(size_t component);

 private:
  Run& at(int run) { return runs_[static_cast<size_t>(run)]; }
  int64_t area_of(int begin, int end) const {
    return areas_.before(end * chunk_size_) - areas_.before(begin * chunk_size_);
  }
  int cut(int run, int begin);
  void enter(int run, int rank);
  void leave(int run);

  const MaskComponents& components_;
  const RowAreas& areas_;
  int64_t chunk_size_;
  std::vector<Run> runs_;
  std::vector<int> free_;
  std::vector<int> first_;  // run of each component
  int tail_ = -1;
  std::vector<std::vector<int>> of_rank_;  // in any order
};

}  // namespace tangram
