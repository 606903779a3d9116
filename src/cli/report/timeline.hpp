// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What every rank does when: as the cost model predicts it, or as a run recorded it.
#pragma once

#include <vector>

#include "tangram/plan.hpp"

namespace tangram::cli {

/// kTransfer brings what a stage needs, kReturn takes its results or gradients away; kMemory: rows are put together or
/// taken apart, and added up.
enum class Lane : int { kCompute = 0, kTransfer = 1, kReturn = 2, kMemory = 3 };

struct TimelineEvent {
  int rank = 0;
  Lane lane = Lane::kCompute;
  bool backward = false;
  int stage = 0;
  double begin_s = 0;
  double end_s = 0;
};

/// The step as the plan's cost model sees it; the backward pass starts when the slowest rank has ended forward. Of the
/// `most_ranks` slowest ranks.
std::vector<TimelineEvent> predicted_timeline(const Plan& plan, size_t most_ranks);

/// The ranks to draw, at most `count`: all in order or, if there are more, the ones with the longest passes, slowest
/// first.
std::vector<int> slowest_ranks(const std::vector<TimelineEvent>& events, size_t count);

}  // namespace tangram::cli
