// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Calls of a group of GPUs, timed in turns.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "tangram/communicator.hpp"

namespace tangram::bench {

/// NOTE [turns]: a GPU that has rested, or done light work, runs at up to a fifth more than its lasting clock. It meets
/// its power limit some 200 ms later, and its clock swings by 4 % for a second more. What is measured in one piece
/// seems faster or slower by that. So all that is compared runs in short turns, in another random order each round: the
/// clocks of a turn are those of all calls. Figures are medians over rounds, after what all calls of a round have in
/// common has been divided out.

/// How calls are repeated.
struct Repeats {
  double seconds = 0.15;  ///< about as long each call is counted, over all rounds, of which there are three or more
  double warm_s = 0.3;    ///< about as long rounds are run before the counted ones
};

struct TimedCall {
  std::function<void()> call;  ///< enqueues on `stream`
  cudaStream_t stream = nullptr;
  int num_passes = 1;  ///< that one call enqueues; times are of one
};

/// Time of one pass, in seconds.
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
