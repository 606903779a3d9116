// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Places where owners of rows receive partial results. Each part has rows of its own, so that a plain cast brings it,
// and no rank adds to rows that another rank writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/program/program.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Rows of the receive buffer of a group-reduce, which returns what each stage brought. Rows are assigned stage by
/// stage, within a stage by rank: the order in which parts are added.
struct RecvBufferRows {
  /// Casts by stage: from a rank's rows, as they lie where it computed, to receive rows of their owners.
  std::vector<Exchange> casts;
  int64_t rows = 0;       ///< that this rank takes
  int64_t most_rows = 0;  ///< that any rank takes
  /// The receive rows of each row of the shard.
  RowLists of_shard_row;
};

/// `pass`: the tables of all ranks; `shard_rows`: flattened rows of the shard of rank `self`.
RecvBufferRows recv_buffer_rows(const std::vector<MovementRank>& pass, size_t self, Exchange MovementStage::* table,
                                int64_t shard_rows);

}  // namespace tangram
