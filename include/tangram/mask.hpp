// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Mask: which keys every query sees, as a list of disjoint slices in canonical form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tangram/slice.hpp"

namespace tangram {

/// A validated, canonical list of slices over `[0, seqlen_q) x [0, seqlen_k)`. An immutable value: comparable,
/// hashable.
///
/// Canonical form: every slice as by `canonical`, empty ones dropped, neighbours whose union is again one slice merged,
/// sorted by (q_range, k_range, band). Merging is greedy: lists that cut the same cells along the same lines, or more
/// finely, end up equal. Two unlike tilings of one area may stay different, and are then cached twice.
class Mask {
 public:
  Mask() = default;

  /// Validates and canonicalises in O(n log n). Throws InvalidArgument if a range is reversed or out of bounds, a band
  /// is reversed, or two slices cover a cell twice. The text names the indices of the slices as passed.
  Mask(int64_t seqlen_q, int64_t seqlen_k, std::vector<AttnSlice> slices);

  int64_t seqlen_q() const { return seqlen_q_; }
  int64_t seqlen_k() const { return seqlen_k_; }
  std::span<const AttnSlice> slices() const {
    return cells_ == nullptr ? std::span<const AttnSlice>() : std::span<const AttnSlice>(cells_->slices);
  }
  bool is_self_attention() const { return seqlen_q_ == seqlen_k_; }

  /// Number of visible cells.
  int64_t area() const { return cells_ == nullptr ? 0 : cells_->area; }

  /// A hash of the canonical form, equal on every rank and machine.
  uint64_t hash() const;

  /// This mask over longer sequences; the added queries and keys are fully masked. Throws InvalidArgument
  /// when a length would shrink. Shares its memory with this mask, as a copy does.
  Mask padded(int64_t seqlen_q, int64_t seqlen_k) const;
  /// An equal mask in memory of its own.
  Mask cloned() const;

  bool operator==(const Mask& other) const;

 private:
  /// Immutable data, shared by copies: a mask of blocks has thousands of slices, and each plan and cache key that holds
  /// it has a copy.
  struct Cells {
    std::vector<AttnSlice> slices;
    int64_t area = 0;
    uint64_t hash = 0;
  };

  void set_cells(std::vector<AttnSlice> slices);

  int64_t seqlen_q_ = 0;
  int64_t seqlen_k_ = 0;
  std::shared_ptr<const Cells> cells_;
};

/// Merges neighbours whose union is again one slice (see Mask); the input must be canonical and disjoint. Used for
/// masks and for the local slices of ranks.
std::vector<AttnSlice> merge_touching(std::vector<AttnSlice> slices);

/// The indices of two slices of the list that cover a cell twice, or {-1, -1}. O(n log n): a sweep over query rows with
/// the slices that are active ordered by key, comparing only neighbours (Shamos and Hoey, 1976).
struct OverlapPair {
  int64_t first = -1;
  int64_t second = -1;
};
OverlapPair find_overlap(std::span<const AttnSlice> slices);

}  // namespace tangram

template <>
struct std::hash<tangram::Mask> {
  size_t operator()(const tangram::Mask& mask) const noexcept { return static_cast<size_t>(mask.hash()); }
};
