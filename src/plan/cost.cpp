// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/cost.hpp"

#include <algorithm>

#include "machine/head_dim_rates.hpp"
#include "tangram/dtype.hpp"

namespace tangram {

double flops_per_head_cell(const HeadConfig& heads, AttnPass pass) {
  return flops_per_cell(heads.head_dim, heads.head_dim_v, pass);
}

double compute_seconds(const DistAttnConfig& config, int64_t area, AttnPass pass) {
  const HeadConfig& heads = config.heads;
  const CostModel& cost = config.cost;
  const double rate = (pass == AttnPass::kForward ? cost.forward_flops_per_s : cost.backward_flops_per_s) *
                      head_dim_factor(cost.head_dim_rates, heads.head_dim, heads.head_dim_v, pass);
  return static_cast<double>(area) * heads.num_heads_q * flops_per_head_cell(heads, pass) / rate;
}

int64_t kv_row_bytes(const HeadConfig& heads) {
  return int64_t{heads.num_heads_kv} * (heads.head_dim + heads.head_dim_v) * static_cast<int64_t>(size_of(heads.dtype));
}

int64_t kv_grad_row_bytes(const HeadConfig& heads, DType reduce_dtype) {
  return int64_t{heads.num_heads_kv} * (heads.head_dim + heads.head_dim_v) *
         static_cast<int64_t>(size_of(reduce_dtype));
}

double visible_row_seconds(const DistAttnConfig& config) {
  const int64_t bytes = 2 * kv_row_bytes(config.heads) + kv_grad_row_bytes(config.heads, config.reduce_dtype);
  return kVisibleShare * transfer_seconds(config.cost, 1, bytes, 0);
}

bool is_short_step(const DistAttnConfig& config, int64_t area) {
  constexpr double kShort_s = 2e-4;
  return step_seconds(config, area / config.cp_size, 0) < kShort_s;
}

double step_seconds(const DistAttnConfig& config, int64_t area, double rows) {
  const double compute_s =
      compute_seconds(config, area, AttnPass::kForward) + compute_seconds(config, area, AttnPass::kBackward);
  const double seen_s = rows * visible_row_seconds(config);
  return std::max(compute_s + seen_s, seen_s / kVisibleShare);
}

double transfer_seconds(const CostModel& cost, int64_t rows, int64_t row_bytes, int64_t num_copies) {
  return static_cast<double>(rows) * static_cast<double>(row_bytes) / cost.link_bytes_per_s +
         static_cast<double>(num_copies) * cost.copy_latency_s;
}

double memory_seconds(const CostModel& cost, int64_t bytes) {
  return static_cast<double>(bytes) / cost.memory_bytes_per_s;
}

}  // namespace tangram
