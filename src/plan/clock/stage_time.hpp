// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Passes in stages on the clock: rows come stage by stage while the stage before computes, results leave behind each.
#pragma once

#include <vector>

#include "plan/clock/clock.hpp"

namespace tangram {

/// A stage of a rank.
struct StageSeconds {
  double attend_s = 0;
  double cast_s = 0;     ///< until its rows have come
  double return_s = 0;   ///< until its results have left, over a link of their own
  bool crosses = false;  ///< between nodes, over links of their own
};

struct StagedPass {
  int num_ranks = 1;
  int num_stages = 0;                ///< remote ones
  std::vector<StageSeconds> stages;  ///< [ranks][1 + num_stages]
  std::vector<double> merge_s;       ///< [ranks]: what comes back is added to what is there; of passes with stages
  bool hides = true;

  StageSeconds& stage(size_t rank, size_t number) {
    return stages[rank * (static_cast<size_t>(num_stages) + 1) + number];
  }
};
/// All zero.
StagedPass staged_pass(size_t num_ranks, int num_stages);

/// `skeleton`: kv_skeleton or movement_skeleton of as many stages.
std::vector<RankTime> time_of(const StagedPass& pass, const Skeleton& skeleton, ClockTrace* trace = nullptr);

}  // namespace tangram
