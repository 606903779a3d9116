// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What one rank moves by a plan in which K/V alone move, as tables of a BufferedPass. Plain host data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/buffered_pass.hpp"
#include "tangram/dist_mask_buffer.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Rows of the own part behind those of the shard, for gradients of buffer rows that no plan fills, which are zeros.
/// There are several, so that stores do not meet.
inline constexpr int64_t kUnusedRows = 256;

struct RankTables {
  BufferedTables moves;
  std::vector<LocalKvRange> elsewhere;  ///< own rows that calls read where they lie
};
/// Own rows in ranges longer than two borders are read where they lie, and their borders copied; with a negative
/// `border` all are copied.
RankTables tables_of_rank(const Plan& plan, int rank, int64_t border);

/// DkvScatterMap::of_key of the buffer's rows, used or not.
void write_places(const Plan& plan, int rank, const BufferedTables& tables, std::span<uint32_t> places);

}  // namespace tangram
