// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// make_plan, and what can be asked of a finished plan.
#include "tangram/plan.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "plan/cost.hpp"
#include "plan/dispatch.hpp"
#include "plan/rank_plan.hpp"
#include "plan/runs.hpp"
#include "plan/stages.hpp"
#include "plan/validate.hpp"

namespace tangram {

namespace {

void validate_length(int64_t seqlen, const char* name, const DistAttnConfig& config) {
  const int64_t chunk_size = std::max<int64_t>(config.dispatch.chunk_size, 1);
  require(seqlen > 0, "make_plan: {} must be positive (got {})", name, seqlen);
  require(seqlen / config.cp_size >= chunk_size,
          "make_plan: every rank needs a chunk, so cp_size must not exceed {} / chunk_size (got {}={}, cp_size={}, "
          "chunk_size={})",
          name, name, seqlen, config.cp_size, chunk_size);
  require(
      seqlen % (config.cp_size * chunk_size) == 0,
      "make_plan: {} must be a multiple of cp_size * chunk_size, pad it by compute_pad_size (got {}={}, cp_size={}, "
      "chunk_size={})",
      name, name, seqlen, config.cp_size, chunk_size);
}

// The plan of given dispatches; everything else follows from them.
Plan finish_plan(const Mask& mask, const DistAttnConfig& config, ChosenDispatch q, Dispatch k_dispatch) {
  Plan plan;
  plan.mask = mask;
  plan.config = config;
  plan.algorithm = q.algorithm;
  plan.q_dispatch = std::move(q.dispatch);
  plan.k_dispatch = std::move(k_dispatch);
  plan.ranks = make_rank_plans(mask, plan.q_dispatch, plan.k_dispatch);
  const StageCounts counts = choose_stage_counts(config, plan.ranks);
  for (int r = 0; r < config.cp_size; ++r) {
    assign_stages(plan.ranks[static_cast<size_t>(r)], r, counts, config.overlap.keep_remote_kv);
  }
  build_stages(plan.ranks, counts, config.overlap.keep_remote_kv);
  plan.predicted = predict(config, plan.ranks);
  return plan;
}

}  // namespace

std::vector<Range> Dispatch::rows_of_rank(int rank) const {
  require(0 <= rank && rank < cp_size, "Dispatch::rows_of_rank: rank must lie in [0, {}) (got {})", cp_size, rank);
  std::vector<Range> rows;
  for (int64_t c = 0; c < num_chunks(); ++c) {
    if (rank_of_chunk[static_cast<size_t>(c)] != rank) continue;
    const Range chunk{c * chunk_size, (c + 1) * chunk_size};
    if (!rows.empty() && rows.back().end == chunk.begin) {
      rows.back().end = chunk.end;
    } else {
      rows.push_back(chunk);
    }
  }
  return rows;
}

int64_t compute_pad_size(int64_t seqlen, int cp_size, int64_t chunk_size) {
  constexpr int64_t kMaxSize = int64_t{1} << 31;
  require(
      0 < seqlen && seqlen <= kMaxSize && 0 < cp_size && 0 < chunk_size && chunk_size <= kMaxSize,
      "compute_pad_size: all arguments must be positive and at most 2^31 (got seqlen={}, cp_size={}, chunk_size={})",
      seqlen, cp_size, chunk_size);
  const int64_t unit = cp_size * chunk_size;
  return (unit - seqlen % unit) % unit;
}

Plan make_plan(const Mask& mask, const DistAttnConfig& config) {
  validate_config(config, "make_plan");
  validate_length(mask.seqlen_q(), "seqlen_q", config);
  validate_length(mask.seqlen_k(), "seqlen_k", config);
  ChosenDispatch q = dispatch_queries(mask, config);
  Dispatch k = mask.is_self_attention() ? q.dispatch : dispatch_keys(mask, q.dispatch, config);
  return finish_plan(mask, config, std::move(q), std::move(k));
}

Plan make_plan(const Mask& mask, const DistAttnConfig& config, const Dispatch& q_dispatch, const Dispatch& k_dispatch) {
  validate_config(config, "make_plan");
  validate_dispatch(q_dispatch, config.cp_size, mask.seqlen_q(), "make_plan: q_dispatch");
  validate_dispatch(k_dispatch, config.cp_size, mask.seqlen_k(), "make_plan: k_dispatch");
  return finish_plan(mask, config, {config.dispatch.algorithm, q_dispatch}, k_dispatch);
}

double Plan::balance() const {
  int64_t largest = 0;
  for (const RankPlan& rank : ranks) largest = std::max(largest, rank.area);
  return mask.area() == 0 ? 1 : static_cast<double>(largest) * cp_size() / static_cast<double>(mask.area());
}

int64_t Plan::rows_moved() const {
  int64_t rows = 0;
  for (const RankPlan& rank : ranks) rows += rank.remote_kv_rows;
  return rows;
}

int64_t Plan::peak_bytes(int rank) const {
  require(0 <= rank && rank < cp_size(), "Plan::peak_bytes: rank must lie in [0, {}) (got {})", cp_size(), rank);
  const HeadConfig& heads = config.heads;
  const int64_t element = static_cast<int64_t>(size_of(heads.dtype));
  const int64_t q_rows = q_dispatch.rows_per_rank();
  const int64_t k_rows = k_dispatch.rows_per_rank();
  const int64_t buffer_rows = ranks[static_cast<size_t>(rank)].kv_rows;
  const int64_t q_elements = int64_t{heads.num_heads_q} * heads.head_dim;
  const int64_t out_elements = int64_t{heads.num_heads_q} * heads.head_dim_v;
  const int64_t float_bytes = 4;
  // The backward pass is the worst moment: q, dq, out, dout and lse of the shard, dq summed in float32; k, v and their
  // gradients of the shard with the sums that peers send; the buffer with K/V and its gradients in float32, once more
  // as they travel when that is narrower.
  const int64_t reduced_row = kv_grad_row_bytes(heads, config.reduce_dtype);
  const int64_t float_row = kv_grad_row_bytes(heads, DType::kFloat32);
  const int64_t per_q_row = element * 2 * (q_elements + out_elements) + float_bytes * (heads.num_heads_q + q_elements);
  const int64_t per_k_row = 2 * kv_row_bytes(heads) + reduced_row;
  const int64_t per_buffer_row = kv_row_bytes(heads) + float_row + (reduced_row < float_row ? reduced_row : 0);
  return q_rows * per_q_row + k_rows * per_k_row + buffer_rows * per_buffer_row;
}

}  // namespace tangram
