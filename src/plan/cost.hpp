// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The currency in which plans are compared: seconds of the slowest rank.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/stages.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Floating-point operations of one visible cell of one query head.
double flops_per_head_cell(const HeadConfig& heads, Pass pass);
/// Seconds that `area` cells take in one pass.
double compute_seconds(const DistAttnConfig& config, int64_t area, Pass pass);
/// Bytes of one K/V row as it is cast (forward and backward) and of its gradients as they are reduced.
int64_t kv_row_bytes(const HeadConfig& heads);
int64_t kv_grad_row_bytes(const HeadConfig& heads, DType reduce_dtype);
/// Most transfers hide behind compute; when dispatches are compared, this share of them is taken to be seen.
inline constexpr double kVisibleShare = 0.25;
/// What one more row to fetch is worth then: seconds of a step, both passes.
double visible_row_seconds(const DistAttnConfig& config);
/// Seconds until `rows` rows in `num_copies` copies have arrived over one rank's link.
double transfer_seconds(const CostModel& cost, int64_t rows, int64_t row_bytes, int64_t num_copies);

/// What one stage of one rank asks for.
struct StageLoad {
  int64_t area = 0;
  int64_t rows = 0;
  int64_t num_copies = 0;
};

/// Seconds of a pass on one rank, and how many of them nothing but transfers went on. `loads[0]` is the local stage.
/// The cast of stage i + 1 is posted before stage i computes, and the link carries one stage at a time; backward, the
/// gradients of a stage travel the other way once it is computed.
struct PassTime {
  double total_s = 0;
  double exposed_s = 0;
};
PassTime pass_time(const DistAttnConfig& config, const std::vector<StageLoad>& loads, Pass pass, bool kept_first);

/// The numbers of stages: those configured, or where these are 0 the ones with the least predicted time.
StageCounts choose_stage_counts(const DistAttnConfig& config, const std::vector<RankPlan>& ranks);

/// Prediction for finished stages.
PredictedTime predict(const DistAttnConfig& config, const std::vector<RankPlan>& ranks);

}  // namespace tangram
