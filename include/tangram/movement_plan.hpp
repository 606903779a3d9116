// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MovementPlan: attention where q, k, v and out may all move. Rows stay where the dispatch put them. Work is assigned
// instead: a rank may compute with queries that it does not own and return partial results.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/attn_pass.hpp"
#include "tangram/exchange.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// A run of rows in one of a rank's buffers, all of one owner.
struct RowSegment {
  Range global;           // flattened rows of the sequence, see MovementPlan
  int64_t row = 0;        // first row in the buffer
  int owner = 0;          // the rank whose shard holds the rows
  int64_t owner_row = 0;  // first row in the owner's flattened shard
  int stage = 0;          // the stage that brings the rows, 0 when they are local

  friend bool operator==(const RowSegment&, const RowSegment&) = default;
};

/// One step of a pass on one rank. Stage 0 works on own queries and local keys; its exchanges are empty. All ranks have
/// equally many stages in a pass; some may be empty.
struct MovementStage {
  /// group_cast of q shard rows into remote-q buffers (forward: q; backward: q, dout, lse and delta). Read backwards,
  /// the results return to the owners (forward: out and lse, merged by lse; backward: dq, summed).
  Exchange q;
  /// group_cast of k and v shard rows into K/V buffers; read backwards, group_reduce of dk and dv.
  Exchange kv;
  std::vector<AttnSlice> own_slices;    // (flattened shard row, K/V buffer row)
  std::vector<AttnSlice> moved_slices;  // (remote-q buffer row, K/V buffer row)
  int64_t area = 0;                     // of both, in cells of one head group

  friend bool operator==(const MovementStage&, const MovementStage&) = default;
};

/// Rows and stages of a rank in one pass.
struct MovementRank {
  /// K/V rows that the rank's work sees, local and remote, compact in global order (NOTE [global row order], plan.hpp).
  std::vector<RowSegment> kv_segments;
  int64_t kv_rows = 0;
  int64_t remote_kv_rows = 0;
  /// Queries of other ranks that the rank computes for: compact, stage by stage, in global order within a stage. Own
  /// queries stay in the shard.
  std::vector<RowSegment> q_segments;
  int64_t remote_q_rows = 0;
  std::vector<MovementStage> stages;
  int64_t area = 0;  // in cells of one head group

  friend bool operator==(const MovementRank&, const MovementRank&) = default;
};

/// Who computes what when queries move too, for both passes, which may differ.
///
/// Rows are *flattened* over head groups. With G groups, head group g of row r is flattened row `g * seqlen + r` of the
/// sequence. If a shard holds row r as its row s, it is flattened row `g * rows_per_rank + s` of the shard. A flattened
/// row carries num_heads_q / G query heads (num_heads_kv / G K/V heads). A slice of rows of two groups shows, in
/// buffers where these touch, what slices of each would.
///
/// Invariants, in each pass:
/// 1. Every visible cell of every head group is in one slice of one stage of one rank.
/// 2. The exchanges of all stages together bring exactly the remote rows that the rank's slices see. Each arrives once,
///    in the rows that the segments name; no exchange names the rank itself.
/// 3. A remote query row of stage s is computed in stage s alone, in one or more slices, with K/V rows that are local
///    or came in stages <= s. After the stage its partial result is complete and can leave.
/// 4. Slices of own queries see K/V rows that are local or came in stages <= theirs. Their results accumulate on the
///    rank.
/// 5. The owner of a query combines the partial results in a fixed order. Its own is first, then those of stages 1, 2,
///    ..., within a stage by rank. A query that no rank sees has none and is `out = 0, lse = -inf`.
struct MovementPlan {
  int head_groups = 1;
  std::vector<MovementRank> forward;   // [cp_size]
  std::vector<MovementRank> backward;  // [cp_size]

  const std::vector<MovementRank>& of(AttnPass pass) const { return pass == AttnPass::kForward ? forward : backward; }

  friend bool operator==(const MovementPlan&, const MovementPlan&) = default;
};

}  // namespace tangram
