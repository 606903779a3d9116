// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// strategy "auto": what every strategy would take for a mask, from areas alone.
#pragma once

#include <string>
#include <vector>

#include "tangram/error.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// The best layout of every strategy of a grid, in the order of `Strategy`, with its predicted times or why it cannot
/// run. Over these dispatches where they are given (both or none), else over those that each strategy assigns.
std::vector<StrategyCandidate> grid_candidates(const Mask& mask, const DistAttnConfig& config,
                                               const Dispatch* q_dispatch = nullptr,
                                               const Dispatch* k_dispatch = nullptr);

/// Predicted times closer than this share of the least one count as equal: less than what a cost model can tell, more
/// than rounding makes. Of these the first wins, in an order that puts what is simpler first.
inline constexpr double kTieShare = 1e-3;
/// The first of these times that is within kTieShare of the least one.
size_t first_of_fastest(const std::vector<double>& seconds);

/// The winner first; if candidates tie (kTieShare), the first in the order of `Strategy`. Then by predicted step, equal
/// ones in the given order, impossible ones last.
void sort_candidates(std::vector<StrategyCandidate>& candidates);

/// The candidate with the least time of one pass; null when none is possible.
const StrategyCandidate* fastest_forward(const std::vector<StrategyCandidate>& candidates);
const StrategyCandidate* fastest_backward(const std::vector<StrategyCandidate>& candidates);

}  // namespace tangram
