// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The currency in which plans are compared: seconds of the slowest rank.
#pragma once

#include <cstdint>

#include "plan/stages.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Floating-point operations of one visible cell of one query head.
double flops_per_head_cell(const HeadConfig& heads, AttnPass pass);
/// Seconds that `area` cells take in one pass.
double compute_seconds(const DistAttnConfig& config, int64_t area, AttnPass pass);
/// Bytes of one K/V row as it is cast (forward and backward) and of its gradients as they are reduced.
int64_t kv_row_bytes(const HeadConfig& heads);
int64_t kv_grad_row_bytes(const HeadConfig& heads, DType reduce_dtype);
/// Most transfers hide behind compute; when dispatches are compared, this share of them is taken to be seen.
inline constexpr double kVisibleShare = 0.25;
/// Cost of one more row to fetch: seconds of a step, both passes.
double visible_row_seconds(const DistAttnConfig& config);
/// A step about as dispatches are compared, both passes: the slowest rank has `area` cells, and every rank fetches
/// `rows` rows. Where a link is busy for longer than kernels are, it is what a step takes.
double step_seconds(const DistAttnConfig& config, int64_t area, double rows);
/// Whether a step over `area` cells of all ranks is made of latencies, of which an estimate knows next to nothing.
bool is_short_step(const DistAttnConfig& config, int64_t area);
/// Seconds until `rows` rows in `num_copies` copies have arrived over one rank's link.
double transfer_seconds(const CostModel& cost, int64_t rows, int64_t row_bytes, int64_t num_copies);
/// Seconds to read or write `bytes` of a rank's memory.
double memory_seconds(const CostModel& cost, int64_t bytes);

}  // namespace tangram
