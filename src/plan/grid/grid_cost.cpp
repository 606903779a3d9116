// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a grid moves, in closed form, and how long its steps take in the cost model.
#include <algorithm>

#include "core/require.hpp"
#include "plan/cost.hpp"
#include "plan/grid/grid.hpp"

namespace tangram {

namespace {

int64_t bytes_of(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

// Bytes of one row of q, out (with lse) and K/V for the given numbers of heads.
struct RowBytes {
  int64_t q = 0;
  int64_t out = 0;
  int64_t dout = 0;
  int64_t dq = 0;
  int64_t kv = 0;
  int64_t dkv = 0;       // as the head exchange returns them
  int64_t ring_dkv = 0;  // as they travel between row groups
};

RowBytes row_bytes(const Plan& plan, const GridCall& call, int64_t heads_q, int64_t heads_kv) {
  const HeadConfig& h = plan.config.heads;
  const bool replicated = plan.grid.head_ranks > h.num_heads_kv;
  const int64_t kv = heads_kv * (h.head_dim + h.head_dim_v);
  RowBytes bytes;
  bytes.q = heads_q * h.head_dim * bytes_of(h.dtype);
  bytes.out = heads_q * (h.head_dim_v * bytes_of(call.out) + bytes_of(DType::kFloat32));
  bytes.dout = heads_q * h.head_dim_v * bytes_of(call.dout);
  bytes.dq = heads_q * h.head_dim * bytes_of(call.grads);
  bytes.kv = kv * bytes_of(h.dtype);
  bytes.dkv = kv * bytes_of(replicated ? plan.config.reduce_dtype : call.grads);
  bytes.ring_dkv = kv * bytes_of(plan.config.reduce_dtype);
  return bytes;
}

// Received by one rank in the head exchange, on the way to heads and back.
struct HeadBytes {
  int64_t in = 0;
  int64_t back = 0;
};

HeadBytes head_bytes(const Plan& plan, const GridCall& call, Pass pass, int heads_kv) {
  const GridPlan& grid = plan.grid;
  const HeadConfig& h = plan.config.heads;
  const int64_t heads_q = int64_t{heads_kv} * local_heads_q(h, grid.head_ranks) / local_heads_kv(h, grid.head_ranks);
  const RowBytes row = row_bytes(plan, call, heads_q, heads_kv);
  const int64_t q_rows = plan.q_dispatch.rows_per_rank() * (grid.head_ranks - 1);
  const int64_t k_rows = plan.k_dispatch.rows_per_rank() * (grid.head_ranks - 1);
  const int64_t inputs = q_rows * row.q + k_rows * row.kv;
  if (pass == Pass::kForward) return {inputs, q_rows * row.out};
  return {q_rows * row.dout + (call.kept ? 0 : inputs + q_rows * row.out), q_rows * row.dq + k_rows * row.dkv};
}

// Received by one rank from other row groups.
struct BlockBytes {
  int64_t kv = 0;   // of one block
  int64_t dkv = 0;  // of its gradients
};

BlockBytes block_bytes(const Plan& plan) {
  const RowBytes row = row_bytes(plan, {}, 0, local_heads_kv(plan.config.heads, plan.grid.head_ranks));
  const int64_t rows = plan.k_dispatch.rows_per_rank() * plan.grid.head_ranks;
  return {rows * row.kv, rows * row.ring_dkv};
}

double link_seconds(const Plan& plan, int64_t bytes, int64_t copies) {
  return bytes == 0 ? 0
                    : static_cast<double>(bytes) / plan.config.cost.link_bytes_per_s +
                          static_cast<double>(copies) * plan.config.cost.copy_latency_s;
}

struct PassSeconds {
  double total_s = 0;
  double compute_s = 0;
};

// One chunk of heads after the other over one link: the exchange of the next chunk is posted when one starts to
// compute, its results leave when it has ended.
PassSeconds play_chunks(const Plan& plan, const std::vector<int>& chunks, Pass pass, double rows_s) {
  GridCall call;
  call.out = call.dout = call.grads = plan.config.heads.dtype;
  const int all_heads = local_heads_kv(plan.config.heads, plan.grid.head_ranks);
  const int64_t copies = 3 * (plan.grid.head_ranks - 1);
  const auto seconds = [&](int heads, bool in) {
    const HeadBytes bytes = head_bytes(plan, call, pass, heads);
    return link_seconds(plan, in ? bytes.in : bytes.back, copies);
  };
  PassSeconds result;
  double link_free = seconds(chunks[0], true), arrived = link_free, computed = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const double begin = std::max(computed, arrived);
    const double compute = rows_s * chunks[c] / all_heads + (c == 0 ? 0 : plan.config.cost.stage_overhead_s);
    if (c + 1 < chunks.size()) arrived = link_free = std::max(link_free, begin) + seconds(chunks[c + 1], true);
    computed = begin + compute;
    link_free = std::max(link_free, computed) + seconds(chunks[c], false);
    result.compute_s += compute;
  }
  result.total_s = std::max(link_free, computed);
  return result;
}

// Row groups step together: each step lasts as long as the slowest group's compute or transfer.
PassSeconds play_rows(const Plan& plan, Pass pass) {
  const GridPlan& grid = plan.grid;
  const BlockBytes block = block_bytes(plan);
  const int64_t blocks_at_once = grid.row_move == RowMove::kGather ? grid.row_groups - 1 : 1;
  const double cast_s = link_seconds(plan, block.kv * blocks_at_once, 2 * blocks_at_once);
  const double grads_s =
      pass == Pass::kForward ? 0 : link_seconds(plan, block.dkv * blocks_at_once, 2 * blocks_at_once);
  const size_t num_steps = grid.steps[0].size();
  PassSeconds result;
  for (size_t s = 0; s < num_steps; ++s) {
    int64_t area = 0;
    for (const std::vector<GridStep>& steps : grid.steps) area = std::max(area, steps[s].area);
    const double compute =
        compute_seconds(plan.config, area, pass) / grid.head_ranks + (s == 0 ? 0 : plan.config.cost.stage_overhead_s);
    double link = s + 1 < num_steps ? cast_s : 0;
    if (grid.row_move == RowMove::kRing && s > 0) link += grads_s;
    result.compute_s += compute;
    result.total_s += std::max(compute, link);
  }
  if (num_steps > 1) result.total_s += grads_s;  // the last gradients have nothing to hide behind
  return result;
}

PassSeconds play_pass(const Plan& plan, Pass pass, const std::vector<int>& chunks) {
  const PassSeconds rows = play_rows(plan, pass);
  if (plan.grid.head_ranks == 1) return rows;
  PassSeconds result = play_chunks(plan, chunks, pass, rows.total_s);
  result.compute_s -= rows.total_s - rows.compute_s;
  return result;
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

}  // namespace

std::vector<int> choose_head_chunks(const Plan& plan) {
  std::vector<int> best;
  double best_s = 0;
  for (const std::vector<int>& chunks : chunk_candidates(local_heads_kv(plan.config.heads, plan.grid.head_ranks))) {
    const double seconds =
        play_pass(plan, Pass::kForward, chunks).total_s + play_pass(plan, Pass::kBackward, chunks).total_s;
    if (!best.empty() && seconds >= best_s) continue;
    best = chunks;
    best_s = seconds;
  }
  return best;
}

PredictedTime predict_grid(const Plan& plan) {
  PredictedTime predicted;
  const PassSeconds forward = play_pass(plan, Pass::kForward, plan.grid.head_chunks);
  const PassSeconds backward = play_pass(plan, Pass::kBackward, plan.grid.head_chunks);
  predicted.forward_s = forward.total_s;
  predicted.backward_s = backward.total_s;
  predicted.exposed_s =
      std::max(0.0, forward.total_s - forward.compute_s) + std::max(0.0, backward.total_s - backward.compute_s);
  return predicted;
}

GridTraffic grid_traffic(const Plan& plan, const GridCall& call) {
  require(!plan.grid.empty(), "grid_traffic: plan must be of another strategy than tangram (got {})",
          to_string(plan.config.strategy.name));
  const GridPlan& grid = plan.grid;
  const int heads_kv = local_heads_kv(plan.config.heads, grid.head_ranks);
  const HeadBytes forward = head_bytes(plan, call, Pass::kForward, heads_kv);
  const HeadBytes backward = head_bytes(plan, call, Pass::kBackward, heads_kv);
  const BlockBytes block = block_bytes(plan);
  const int64_t others = grid.row_groups - 1;
  // Round a ring, gradients come home with one hop more than K/V makes.
  const int64_t grad_hops = grid.row_move == RowMove::kRing ? grid.row_groups : others;
  const int64_t ranks = plan.cp_size();
  return {ranks * (forward.in + forward.back + others * block.kv),
          ranks * (backward.in + backward.back + others * block.kv + grad_hops * block.dkv)};
}

}  // namespace tangram
