// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// PassLayout: which ranges of rows a device pass moves where, worked out once from its tables. Plain host data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/operation.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// Rows that lie together at both ends.
struct Piece {
  int64_t from = 0;
  int64_t to = 0;
  int64_t rows = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

struct PeerPieces {
  int peer = 0;
  int64_t rows = 0;
  std::vector<Piece> pieces;

  friend bool operator==(const PeerPieces&, const PeerPieces&) = default;
};

/// Rows of the return area that are added to each owned row: `entries[begin[r]] ... entries[begin[r + 1] - 1]`, by
/// ascending source. The first `num_before[r]` come from ranks below the owner. Of all owned rows, or of some, one
/// after the other.
struct MergeTable {
  std::vector<int32_t> begin;
  std::vector<int32_t> entries;
  std::vector<int32_t> num_before;
};

/// NOTE [return area]: partial rows come back into an area of the owner in which each (stage, source) has its own
/// range. Rows of a range are in the order of the owner's `sends`, which is that of the source's `recvs`. Nothing is
/// added on arrival: the owner merges the ranges in rank order at the end, so that results are reproducible.
struct PassLayout {
  /// Sends by stage, in the order rank + 1, rank + 2, ..., so that no rank is the first of all. From rows of the source
  /// to rows of the peer's receive buffer.
  std::vector<std::vector<PeerPieces>> casts;
  /// Sources of rows by stage, in order of arrival (rank - 1, rank - 2, ...).
  std::vector<std::vector<int>> cast_sources;
  /// Returns of partial rows by stage: from rows of the partial tensor to rows of the owner's return area (before
  /// `place_returns`: of the range).
  std::vector<std::vector<PeerPieces>> returns;
  std::vector<std::vector<int>> return_sources;
  /// First row of the range of (stage, source) in the own return area: [stage * size + source].
  std::vector<int64_t> return_begin;
  int64_t return_rows = 0;
  MergeTable merge;  ///< of all rows, unless DevicePassSpec::leaves_rows
  /// Rows that sources must have, by stage.
  std::vector<int64_t> source_rows;
  int64_t own_source_rows = 0;  ///< the same for own_rows

  /// Peers to which anything is sent, over all stages, as bits.
  uint64_t cast_targets() const;
  uint64_t return_targets() const;
  /// source_rows, 0 for a stage that is not there.
  int64_t min_source_rows(int stage) const;
};

/// The layout of one rank; the tables must have been checked. Ranks are at most 64.
PassLayout make_pass_layout(Caller caller, const DevicePassSpec& spec);

/// Rows that are merged (those not in `left`) and their table. `num_before` is complemented (~) for rows of `absent`.
/// `left` and `absent` are ascending and disjoint. Throws InvalidArgument if a range is not among the rows, or if a row
/// of `left` has returned parts.
struct MergedRows {
  std::vector<int32_t> rows;
  MergeTable table;
};
MergedRows merge_table_without(Caller caller, const DevicePassSpec& spec, const PassLayout& layout,
                               std::span<const Range> left, std::span<const Range> absent);

/// Makes the targets of `returns` rows of the owners' areas; `return_begins[r]` is rank r's return_begin.
void place_returns(PassLayout& layout, Caller caller, const std::vector<std::vector<int64_t>>& return_begins);

}  // namespace tangram::comm
