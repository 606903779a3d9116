// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// RankOfChunk: which rank holds each chunk of a sequence, as runs. There may be a chunk for each row, but runs are tens
// to hundreds.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <vector>

namespace tangram {

/// Chunks of one rank, from where the run before ends up to `end`.
struct OwnedChunks {
  int64_t end = 0;
  int rank = 0;

  friend bool operator==(const OwnedChunks&, const OwnedChunks&) = default;
};

/// Reads as a constant `[num_chunks]` list of ranks; equal lists have equal runs.
class RankOfChunk {
 public:
  using value_type = int;

  RankOfChunk() = default;
  RankOfChunk(std::initializer_list<int> ranks) : RankOfChunk(std::vector<int>(ranks)) {}
  RankOfChunk(const std::vector<int>& ranks) {
    for (const int rank : ranks) push_back(rank);
  }

  size_t size() const { return runs_.empty() ? 0 : static_cast<size_t>(runs_.back().end); }
  bool empty() const { return runs_.empty(); }
  /// O(log runs); `chunk` must be below size().
  int operator[](size_t chunk) const { return runs_[run_of(static_cast<int64_t>(chunk))].rank; }

  void push_back(int rank) { append(1, rank); }
  /// `count` more chunks of one rank.
  void append(int64_t count, int rank) {
    if (count <= 0) return;
    const int64_t end = static_cast<int64_t>(size()) + count;
    if (!runs_.empty() && runs_.back().rank == rank) {
      runs_.back().end = end;
    } else {
      runs_.push_back({end, rank});
    }
  }

  /// Runs of consecutive chunks of one rank; neighbours have different ranks, and the runs cover all chunks.
  std::span<const OwnedChunks> runs() const { return runs_; }
  /// The index of the run of a chunk. O(log runs).
  size_t run_of(int64_t chunk) const {
    size_t begin = 0, end = runs_.size();
    while (end - begin > 1) {
      const size_t middle = (begin + end) / 2;
      (runs_[middle - 1].end <= chunk ? begin : end) = middle;
    }
    return begin;
  }
  /// A rank for each chunk.
  std::vector<int> expanded() const { return {begin(), end()}; }

  /// Iterates over chunks; each step is O(1).
  class const_iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = int;
    using difference_type = std::ptrdiff_t;
    using pointer = const int*;
    using reference = const int&;

    const_iterator() = default;
    const_iterator(const OwnedChunks* run, int64_t chunk) : run_(run), chunk_(chunk) {}
    const int& operator*() const { return run_->rank; }
    const_iterator& operator++() {
      if (++chunk_ == run_->end) ++run_;
      return *this;
    }
    const_iterator operator++(int) {
      const const_iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const const_iterator& a, const const_iterator& b) { return a.chunk_ == b.chunk_; }

   private:
    const OwnedChunks* run_ = nullptr;
    int64_t chunk_ = 0;
  };
  using iterator = const_iterator;
  const_iterator begin() const { return {runs_.data(), 0}; }
  const_iterator end() const { return {runs_.data() + runs_.size(), static_cast<int64_t>(size())}; }

  friend bool operator==(const RankOfChunk&, const RankOfChunk&) = default;

 private:
  std::vector<OwnedChunks> runs_;
};

}  // namespace tangram
