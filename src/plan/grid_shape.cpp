// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/grid_shape.hpp"

#include <algorithm>
#include <utility>

#include "core/require.hpp"

namespace tangram {

namespace {

int default_ulysses_degree(const DistAttnConfig& config) {
  for (int count = config.cp_size / 2; count > 1; --count) {
    if (config.cp_size % count == 0 && config.heads.num_heads_kv % count == 0) return count;
  }
  return 1;
}

int default_inner_ring(int row_groups) {
  int inner = 1;
  for (int count = 2; count * count <= row_groups; ++count) {
    if (row_groups % count == 0) inner = count;
  }
  return inner;
}

// Step (outer, inner) of row group (o, i) works with the block of (o - outer, i - inner). Inside a round of the inner
// ring blocks come from the neighbour of the step before. The first block of the next round comes over the outer ring
// and is requested when the round begins. Gradients follow their block to the rank that has it next.
std::vector<GridStep> ring_steps(int num_groups, int inner, int group) {
  const int outer = num_groups / inner;
  const int my_outer = group / inner, my_inner = group % inner;
  const auto group_at = [&](int o, int i) {
    return ((o % outer + outer) % outer) * inner + (i % inner + inner) % inner;
  };
  std::vector<GridStep> steps;
  for (int s = 0; s < num_groups; ++s) {
    const int o = s / inner, i = s % inner;
    GridStep step;
    step.block = group_at(my_outer - o, my_inner - i);
    if (s == 0) {
      step.source = step.target = group;
    } else if (i > 0) {
      step.posted = s - 1;
      step.source = group_at(my_outer, my_inner - 1);
      step.target = group_at(my_outer, my_inner + 1);
    } else {
      step.posted = s - inner;
      step.source = group_at(my_outer - 1, my_inner);
      step.target = group_at(my_outer + 1, my_inner);
    }
    const int outer_hop = i + 1 == inner ? 1 : 0;
    step.grad_target = group_at(my_outer + outer_hop, my_inner + 1);
    step.grad_source = group_at(my_outer - outer_hop, my_inner - 1);
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<GridStep> gather_steps(int group) {
  GridStep own{group, 0, group, group, group, group, {}, 0};
  GridStep others = own;
  others.block = -1;
  return {own, others};
}

}  // namespace

GridShape grid_shape(const DistAttnConfig& config, const char* function) {
  const StrategyConfig& strategy = config.strategy;
  GridShape shape;
  switch (strategy.name) {
    case Strategy::kAuto:
    case Strategy::kTangram: TANGRAM_ASSERT(false); break;
    case Strategy::kUlysses:
    case Strategy::kHcms: shape.ulysses_degree = config.cp_size; break;
    case Strategy::kRing:
    case Strategy::kAllGather:
    case Strategy::kHybridCp: break;
    case Strategy::kUsp:
    case Strategy::kLoongTrain:
      shape.ulysses_degree = strategy.ulysses_degree == 0 ? default_ulysses_degree(config) : strategy.ulysses_degree;
      break;
  }
  const HeadConfig& heads = config.heads;
  const int count = shape.ulysses_degree;
  require(count > 0 && config.cp_size % count == 0, "{}: {} needs ulysses_degree that divide cp_size (got {} and {})",
          function, to_string(strategy.name), count, config.cp_size);
  require(heads.num_heads_q % count == 0,
          "{}: {} over {} head ranks needs num_heads_q to be a multiple of these (got num_heads_q={})", function,
          to_string(strategy.name), count, heads.num_heads_q);
  require(heads.num_heads_kv % count == 0 || count % heads.num_heads_kv == 0,
          "{}: {} over {} head ranks needs num_heads_kv to be a multiple or a divisor of these (got num_heads_kv={})",
          function, to_string(strategy.name), count, heads.num_heads_kv);
  shape.row_groups = config.cp_size / count;
  if (shape.row_groups > 1) {
    shape.row_move = strategy.name == Strategy::kAllGather  ? RowMove::kGather
                     : strategy.name == Strategy::kHybridCp ? RowMove::kSubRings
                                                            : RowMove::kRing;
  }
  shape.inner_ring_size = shape.row_groups;
  if (strategy.name == Strategy::kLoongTrain) {
    shape.inner_ring_size =
        strategy.inner_ring_size == 0 ? default_inner_ring(shape.row_groups) : strategy.inner_ring_size;
    require(shape.inner_ring_size > 0 && shape.row_groups % shape.inner_ring_size == 0,
            "{}: loong_train needs an inner_ring_size that divides the number of row groups (got {} and {})", function,
            shape.inner_ring_size, shape.row_groups);
  }
  return shape;
}

int local_heads_kv(const HeadConfig& heads, int ulysses_degree) {
  return std::max(1, heads.num_heads_kv / ulysses_degree);
}
int local_heads_q(const HeadConfig& heads, int ulysses_degree) { return heads.num_heads_q / ulysses_degree; }

std::vector<GridStep> empty_grid_steps(const GridShape& shape, int group) {
  return shape.row_move == RowMove::kGather ? gather_steps(group)
                                            : ring_steps(shape.row_groups, shape.inner_ring_size, group);
}

}  // namespace tangram
