// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What every rank does when: as the cost model predicts it, or as a run recorded it.
#pragma once

#include <vector>

#include "tangram/plan.hpp"

namespace tangram::cli {

enum class Lane : int { kCompute = 0, kTransfer = 1 };

struct TimelineEvent {
  int rank = 0;
  Lane lane = Lane::kCompute;
  bool backward = false;
  int stage = 0;
  double begin_s = 0;
  double end_s = 0;
};

/// The step as the plan's cost model sees it; the backward pass starts when the slowest rank has ended forward.
std::vector<TimelineEvent> predicted_timeline(const Plan& plan);

}  // namespace tangram::cli
