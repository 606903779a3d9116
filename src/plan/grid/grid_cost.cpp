// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How long a grid's steps take in the planner's cost model.
#include "plan/grid/grid_cost.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "core/require.hpp"
#include "plan/clock/grid_time.hpp"
#include "plan/cost.hpp"
#include "plan/grid/choose_strategy.hpp"
#include "plan/grid/sub_ring_layout.hpp"
#include "plan/nodes/node_shape.hpp"

namespace tangram {

namespace {

GridSizes sizes_of(const Plan& plan) {
  const GridPlan& grid = *plan.grid();
  // A plan does not hold the inner ring; its shape follows from the configuration again.
  const int inner_ring_size =
      grid.row_move == RowMove::kRing ? grid_shape(plan.config, "predict_grid").inner_ring_size : 1;
  return {plan.config,
          {grid.ulysses_degree, grid.row_groups, grid.row_move, inner_ring_size},
          plan.q_dispatch.rows_per_rank(),
          plan.k_dispatch.rows_per_rank()};
}

GridWork work_of(const Plan& plan) {
  GridWork work{sizes_of(plan), {}};
  for (const std::vector<GridStep>& steps : plan.grid()->steps) {
    for (const GridStep& step : steps) work.areas.push_back(step.area);
  }
  return work;
}

SubRingLoads sub_ring_loads(const GridPlan& grid) {
  SubRingLoads loads;
  for (const std::vector<GridStep>& steps : grid.steps) {
    loads.emplace_back();
    for (const GridStep& step : steps) {
      loads.back().push_back({step.area, step.sub_rings.rows, step.sub_rings.home.rows_received()});
    }
  }
  return loads;
}

double link_seconds(const CostModel& cost, int64_t bytes, int64_t copies) {
  return bytes == 0 ? 0 : transfer_seconds(cost, bytes, 1, copies);
}

// Seconds of a transfer of which `share` crosses between nodes while the rest stays inside.
double shared_seconds(const CostModel& cost, int64_t bytes, int64_t copies, double share) {
  if (share == 0) return link_seconds(cost, bytes, copies);
  const double all = static_cast<double>(bytes), messages = static_cast<double>(copies);
  const double between = all * share / cost.between_bytes_per_s + messages * share * cost.between_message_s;
  const double inside = all * (1 - share) / cost.link_bytes_per_s + messages * (1 - share) * cost.copy_latency_s;
  return std::max(between, inside);
}

// Whether a rank of row group `to` receives from another node when the group receives from `from`.
bool crosses(const GridSizes& sizes, int from, int to) {
  if (!has_nodes(sizes.config)) return false;
  const NodeShape nodes = node_shape(sizes.config);
  const int num_ranks = sizes.shape.ulysses_degree;
  for (int r = 0; r < num_ranks; ++r) {
    if (!nodes.same_node(from * num_ranks + r, to * num_ranks + r)) return true;
  }
  return false;
}

// What each step after the first takes beside its area, where it has any.
double further_seconds(const GridSizes& sizes, AttnPass pass) {
  const HeadConfig& heads = sizes.config.heads;
  const int64_t heads_q = local_heads_q(heads, sizes.shape.ulysses_degree);
  const int64_t q_rows = sizes.q_rows * sizes.shape.ulysses_degree;
  return sizes.config.cost.stage_overhead_s +
         memory_seconds(sizes.config.cost, further_call_bytes(heads, pass, q_rows, heads_q));
}

// The attention of each step of each row group, of all heads that a rank computes: [steps][row_groups].
std::vector<double> attend_seconds(const GridWork& work, AttnPass pass) {
  const GridSizes& sizes = work.sizes;
  const GridShape& shape = sizes.shape;
  const size_t num_groups = static_cast<size_t>(shape.row_groups), num_steps = work.areas.size() / num_groups;
  const int64_t heads_q = local_heads_q(sizes.config.heads, shape.ulysses_degree);
  const double further_s = further_seconds(sizes, pass);
  const double rounding_s = memory_seconds(
      sizes.config.cost, rounding_bytes(sizes.config.heads, pass, sizes.q_rows * shape.ulysses_degree, heads_q));
  const int64_t keys =
      sizes.k_rows * shape.ulysses_degree * (shape.row_move == RowMove::kGather ? shape.row_groups - 1 : 1);
  const double keys_s = sizes.config.cost.backward_key_row_s * static_cast<double>(keys * heads_q);
  std::vector<double> seconds(work.areas.size());
  for (size_t i = 0; i < work.areas.size(); ++i) {
    double more = 0;
    if (i % num_steps == 0) {
      const auto others = std::span(work.areas).subspan(i + 1, num_steps - 1);
      const bool sums = std::ranges::any_of(others, [](int64_t area) { return area > 0; });
      if (sums) more = rounding_s;
    } else if (work.areas[i] > 0) {
      more = further_s + (pass == AttnPass::kBackward ? keys_s : 0);
    }
    seconds[i % num_steps * num_groups + i / num_steps] =
        compute_seconds(sizes.config, work.areas[i], pass) / shape.ulysses_degree + more;
  }
  return seconds;
}

// What moves between row groups.
void set_rows(const GridSizes& sizes, GridPass& grid) {
  const GridShape& shape = sizes.shape;
  if (shape.row_groups == 1) return;
  const BlockBytes block = block_bytes(sizes);
  if (shape.row_move == RowMove::kGather) {
    const int64_t others = shape.row_groups - 1;
    // A block crosses once to each node, over the cards of all its ranks.
    const NodeShape nodes = node_shape(sizes.config);
    const double outside = nodes.cp_size - nodes.ranks_per_node;
    const double share = outside == 0 ? 0 : outside / nodes.ranks_per_node / (nodes.cp_size - 1);
    grid.gather_s = shared_seconds(sizes.config.cost, block.kv * others, 2 * others, share);
    if (!grid.backward) return;
    grid.scatter_s = shared_seconds(sizes.config.cost, block.dkv * others, 2 * others, share) +
                     memory_seconds(sizes.config.cost, block.dkv * (others + 2));
    return;
  }
  // Gradients that come are read, added to those of the step, and written.
  const auto hop_of = [&](bool between) {
    const double share = between ? 1 : 0;
    const double grads_s = grid.backward ? shared_seconds(sizes.config.cost, block.dkv, 2, share) +
                                               memory_seconds(sizes.config.cost, 3 * block.dkv)
                                         : 0;
    return HopSeconds{shared_seconds(sizes.config.cost, block.kv, 2, share), grads_s, between};
  };
  const int inner = shape.inner_ring_size, outer = shape.row_groups / inner;
  for (int g = 0; g < shape.row_groups; ++g) {
    const int ring = g / inner, place = g % inner;
    const int before = (place + inner - 1) % inner, ring_before = (ring + outer - 1) % outer;
    grid.hops.push_back({hop_of(crosses(sizes, ring * inner + before, g)),
                         hop_of(crosses(sizes, ring_before * inner + place, g)),
                         hop_of(crosses(sizes, ring_before * inner + before, g))});
  }
}

// The exchange of heads, whose chunks share the attention of the one step that there is then.
void set_exchanges(const GridSizes& sizes, AttnPass pass, const std::vector<int>& head_chunks, GridPass& grid) {
  if (sizes.shape.ulysses_degree == 1) return;
  const int all_heads = local_heads_kv(sizes.config.heads, sizes.shape.ulysses_degree);
  const int64_t peers = sizes.shape.ulysses_degree - 1;
  const double whole_s = grid.attend_s.front();
  const NodeShape nodes = node_shape(sizes.config);
  const int outside = std::max(0, sizes.shape.ulysses_degree - nodes.ranks_per_node);
  const double share = static_cast<double>(outside) / static_cast<double>(peers);
  for (const int heads : head_chunks) {
    const HeadBytes bytes = head_bytes(sizes, predicted_call(sizes.config.heads), pass, heads);
    if (head_chunks.size() > 1) {
      if (grid.exchanges.empty()) grid.attend_s.clear();
      const double overhead = grid.exchanges.empty() ? 0 : sizes.config.cost.stage_overhead_s;
      grid.attend_s.push_back(whole_s * heads / all_heads + overhead);
    }
    grid.exchanges.push_back(
        {shared_seconds(sizes.config.cost, bytes.in, bytes.in_copies * peers, share),
         shared_seconds(sizes.config.cost, bytes.back, bytes.back_copies * peers, share),
         memory_seconds(sizes.config.cost, head_copy_bytes(bytes.in, sizes.shape.ulysses_degree)),
         memory_seconds(sizes.config.cost, head_copy_bytes(bytes.back, sizes.shape.ulysses_degree))});
  }
}

std::vector<std::vector<int>> chunk_candidates(int heads) {
  constexpr int kMaxChunks = 16;
  std::vector<std::vector<int>> candidates;
  const auto split = [](int total, int parts, std::vector<int>& chunks) {
    for (int i = 0; i < parts; ++i) chunks.push_back(total * (i + 1) / parts - total * i / parts);
  };
  for (int parts = 1; parts <= std::min(heads, kMaxChunks); ++parts) {
    split(heads, parts, candidates.emplace_back());
    if (heads < 4) continue;
    const int middle = heads - 2;
    if (parts > middle) continue;
    std::vector<int>& uneven = candidates.emplace_back(std::vector<int>{1});
    split(middle, parts, uneven);
    uneven.push_back(1);
  }
  return candidates;
}

std::vector<int> choose_head_chunks(const GridWork& work) {
  const int heads = local_heads_kv(work.sizes.config.heads, work.sizes.shape.ulysses_degree);
  const std::vector<std::vector<int>> candidates = chunk_candidates(heads);
  std::vector<double> seconds;
  for (const std::vector<int>& chunks : candidates) {
    seconds.push_back(slowest_of(grid_times(work, AttnPass::kForward, chunks)).total_s +
                      slowest_of(grid_times(work, AttnPass::kBackward, chunks)).total_s);
  }
  return candidates[first_of_fastest(seconds)];
}

}  // namespace

std::vector<int> head_chunks_of(const GridWork& work, const char* function) {
  const StrategyConfig& strategy = work.sizes.config.strategy;
  const int heads_kv = local_heads_kv(work.sizes.config.heads, work.sizes.shape.ulysses_degree);
  if (strategy.name != Strategy::kHcms) return {heads_kv};
  if (strategy.head_chunks.empty()) return choose_head_chunks(work);
  int64_t sum = 0;
  for (const int heads : strategy.head_chunks) {
    require(heads > 0, "{}: strategy.head_chunks must be positive (got {})", function, heads);
    sum += heads;
  }
  require(sum == heads_kv, "{}: strategy.head_chunks must add up to the {} K/V heads of a rank (got {})", function,
          heads_kv, sum);
  return strategy.head_chunks;
}

std::vector<int> head_chunks_of(const Plan& plan, const char* function) {
  return head_chunks_of(work_of(plan), function);
}

std::vector<RankTime> grid_times(const GridWork& work, AttnPass pass, const std::vector<int>& head_chunks,
                                 ClockTrace* trace) {
  GridPass grid{.shape = work.sizes.shape, .backward = pass == AttnPass::kBackward};
  grid.attend_s = attend_seconds(work, pass);
  set_rows(work.sizes, grid);
  set_exchanges(work.sizes, pass, head_chunks, grid);
  return time_of(grid, trace);
}

std::vector<RankTime> grid_times(const Plan& plan, AttnPass pass, ClockTrace* trace) {
  if (plan.grid()->row_move == RowMove::kSubRings) {
    return sub_ring_times(plan.config, sub_ring_loads(*plan.grid()), plan.q_dispatch.rows_per_rank(), pass, trace);
  }
  return grid_times(work_of(plan), pass, plan.grid()->head_chunks, trace);
}

PredictedTime predict_grid(const GridWork& work, const std::vector<int>& head_chunks) {
  return predicted(slowest_of(grid_times(work, AttnPass::kForward, head_chunks)),
                   slowest_of(grid_times(work, AttnPass::kBackward, head_chunks)));
}

PredictedTime predict_grid(const Plan& plan) {
  return predicted(slowest_of(grid_times(plan, AttnPass::kForward)), slowest_of(grid_times(plan, AttnPass::kBackward)));
}

GridTraffic grid_traffic(const Plan& plan, const GridCall& call) {
  require(plan.grid() != nullptr, "grid_traffic: plan must be of another strategy than tangram (got {})",
          to_string(plan.config.strategy.name));
  if (plan.grid()->row_move == RowMove::kSubRings) return sub_ring_traffic(plan.config, plan.grid()->levels);
  return grid_traffic(sizes_of(plan), call);
}

}  // namespace tangram
