// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Shape of a strategy that lays the ranks out in a grid: head ranks, row groups, how rows move. Also the order in which
// a row group meets the blocks of the others.
#pragma once

#include <vector>

#include "tangram/plan.hpp"

namespace tangram {

/// The shape that a strategy gives the grid.
struct GridShape {
  int ulysses_degree = 1;
  int row_groups = 1;
  RowMove row_move = RowMove::kNone;
  int inner_ring_size = 1;
};
/// Throws InvalidArgument, starting with `function`, for heads or numbers of ranks that the strategy cannot split.
GridShape grid_shape(const DistAttnConfig& config, const char* function);

/// K/V heads and query heads that each rank holds after the head exchange.
int local_heads_kv(const HeadConfig& heads, int ulysses_degree);
int local_heads_q(const HeadConfig& heads, int ulysses_degree);

/// The steps of a row group, without what is to be computed. Not of kSubRings.
std::vector<GridStep> empty_grid_steps(const GridShape& shape, int group);

}  // namespace tangram
