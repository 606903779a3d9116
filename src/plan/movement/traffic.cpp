// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The bytes of a plan in which queries move, from the rows in its tables.
#include "core/require.hpp"
#include "tangram/plan.hpp"

namespace tangram {

namespace {

int64_t size_of_one(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

struct RowsMoved {
  int64_t q = 0;
  int64_t kv = 0;
};

RowsMoved rows_moved(const std::vector<MovementRank>& ranks) {
  RowsMoved rows;
  for (const MovementRank& rank : ranks) {
    rows.q += rank.remote_q_rows;
    rows.kv += rank.remote_kv_rows;
  }
  return rows;
}

}  // namespace

bool keeps_moved_rows(const Plan& plan) {
  return plan.config.overlap.keep_remote_kv && plan.movement()->forward == plan.movement()->backward;
}

GridTraffic movement_traffic(const Plan& plan, const GridCall& call) {
  require(plan.movement() != nullptr, "movement_traffic: queries must move in the plan (got movement.algorithm={})",
          to_string(plan.config.movement.algorithm));
  const HeadConfig& heads = plan.config.heads;
  const int64_t groups = plan.movement()->head_groups;
  const int64_t heads_q = heads.num_heads_q / groups, heads_kv = heads.num_heads_kv / groups;
  const int64_t dim = heads.head_dim, dim_v = heads.head_dim_v;
  const int64_t input = size_of_one(heads.dtype), grad = size_of_one(plan.config.reduce_dtype);
  constexpr int64_t kFloat = sizeof(float);
  const int64_t q_bytes = heads_q * dim * input, kv_bytes = heads_kv * (dim + dim_v) * input;

  const RowsMoved forward = rows_moved(plan.movement()->forward), backward = rows_moved(plan.movement()->backward);
  GridTraffic traffic;
  traffic.forward_bytes = forward.q * (q_bytes + heads_q * (dim_v + 1) * kFloat) + forward.kv * kv_bytes;
  traffic.backward_bytes = backward.q * heads_q * (dim_v * size_of_one(call.dout) + 2 * kFloat + dim * grad) +
                           backward.kv * heads_kv * (dim + dim_v) * grad;
  if (!(call.kept && keeps_moved_rows(plan))) traffic.backward_bytes += backward.q * q_bytes + backward.kv * kv_bytes;
  return traffic;
}

}  // namespace tangram
