// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Calls of a group of GPUs, timed in turns.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "tangram/communicator.hpp"

namespace tangram::bench {

/// NOTE [turns]: a GPU that has rested, or done light work, runs at up to a fifth more than its lasting clock until it
/// meets its power limit, some 200 ms later. What is measured behind a pause or behind lighter work would seem the
/// faster by that. So all that is compared runs in turns over several rounds, each turn begins with calls that are not
/// counted, and figures are medians over rounds.

/// How calls are repeated. One that takes longer than `seconds` has one turn of one call.
struct Repeats {
  double seconds = 0.15;  ///< about as long each call is counted, over all rounds
  double warm_s = 0.2;    ///< about as long it runs before that in each turn
};

struct TimedCall {
  std::function<void()> call;  ///< enqueues on `stream`
  cudaStream_t stream = nullptr;
  int num_passes = 1;  ///< that one call enqueues; times are of one
};

/// Of one pass, in seconds.
struct CallTime {
  double device_s = 0;       ///< on the device: the slowest rank
  double mean_device_s = 0;  ///< the mean of all ranks
  double host_s = 0;         ///< of the thread that calls: the slowest rank's median
};

/// Runs `calls` in turns on all ranks of `control`, which start each turn together and make equally many calls.
/// Collective; calls may be collective too.
std::vector<CallTime> measure_in_turns(Communicator& control, const Repeats& repeats,
                                       const std::vector<TimedCall>& calls);

}  // namespace tangram::bench
