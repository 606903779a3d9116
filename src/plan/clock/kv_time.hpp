// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What K/V plans take in the cost model, and the numbers of stages that follow from it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/clock/stage_time.hpp"
#include "plan/nodes/node_rows.hpp"

namespace tangram {

/// Load of one stage of one rank.
struct StageLoad {
  int64_t area = 0;
  int64_t rows = 0;
  int64_t num_copies = 0;
  int64_t between_rows = 0;  ///< that cross between nodes before, on the rail from which its node waits longest
  int num_messages = 0;      ///< on that rail
};

/// `loads`: [ranks][1 + remote stages], the first of them local.
std::vector<RankTime> kv_times(const DistAttnConfig& config, const std::vector<std::vector<StageLoad>>& loads,
                               AttnPass pass, bool kept_first, ClockTrace* trace = nullptr);
/// Times of the ranks, from finished stages.
std::vector<RankTime> kv_times(const DistAttnConfig& config, const std::vector<RankPlan>& ranks, AttnPass pass,
                               ClockTrace* trace = nullptr);

/// Stages that are tried: more never paid in the model, since each adds stage_overhead_s and chops slices.
inline constexpr int kMaxAutoStages = 4;
/// The rows that cross between nodes, on the rails of their owners and on those that are used; none on one node.
struct Crossing {
  NodeRows rows;
  NodeRows rails;
};
/// Traffic between nodes for the keys that ranks need; `k_runs` are the owners.
Crossing crossing_of(const DistAttnConfig& config, const std::vector<RankPlan>& ranks,
                     const std::vector<OwnedRun>& k_runs);

/// The numbers of stages: those configured, or where these are 0 the ones with the least predicted time.
StageCounts choose_stage_counts(const DistAttnConfig& config, const std::vector<RankPlan>& ranks,
                                const Crossing& crossing);

/// Prediction for finished stages.
PredictedTime predict(const DistAttnConfig& config, const std::vector<RankPlan>& ranks, const Crossing& crossing);

}  // namespace tangram
