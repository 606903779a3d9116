// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The simulator predicts a step on a machine of which a few constants are known, up to thousands of ranks. It covers
// Tangram and other ways to split attention over ranks. Nothing is executed and no full plan is built.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tangram/config.hpp"
#include "tangram/machine.hpp"
#include "tangram/mask.hpp"

namespace tangram {

/// Predicted step of one strategy. Times are of the slowest rank.
struct StrategyPrediction {
  std::string strategy;
  /// Empty, or why the strategy cannot run here; everything below is 0 then.
  std::string infeasible;
  /// Strategy that "auto" chose, and its layout; empty otherwise.
  std::string chosen;
  double forward_s = 0;
  double backward_s = 0;
  double compute_s = 0;  ///< of kernels, both passes, on the rank that computes longest
  double exposed_s = 0;  ///< when nothing but transfers went on, both passes, on the slowest rank
  /// Received over all ranks.
  double forward_bytes = 0;
  double backward_bytes = 0;
  double between_bytes = 0;  ///< the part that crosses nodes, both passes
  /// Bytes of the network card that sends or receives most, both passes; 0 for other strategies than Tangram's own.
  double busiest_card_bytes = 0;
  double max_rank_bytes = 0;  ///< largest of one rank, both passes
  int64_t kv_rows_moved = 0;  ///< K/V rows in the forward pass, where K/V is what moves; else 0
  double peak_bytes = 0;      ///< memory of the rank that needs most, equal to Plan::peak_bytes of the same plan
  double balance = 1;         ///< largest area of a rank / mean

  double step_s() const { return forward_s + backward_s; }
};

/// Names of the strategies that can be simulated, Tangram first.
std::vector<std::string_view> simulated_strategies();

/// Predicts a step of `strategy`, one of these or "auto", for `config.cp_size` ranks. Ignores `config.strategy.name`,
/// and `config.cost` in favour of `machine`. Strategies use ulysses_degree, inner_ring_size, head_chunks and
/// document_rows if they have them. The dispatch algorithm applies to strategies that can assign rows so; others assign
/// as by default. Throws InvalidArgument for an unknown strategy, constants that are not positive, or a mask that
/// make_plan refuses.
StrategyPrediction simulate(const Mask& mask, const DistAttnConfig& config, const MachineModel& machine,
                            std::string_view strategy);

}  // namespace tangram
