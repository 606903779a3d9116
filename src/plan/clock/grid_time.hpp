// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Passes of grids on the clock. What has a rank in clock.hpp is a row group here: its ranks are alike.
#pragma once

#include <vector>

#include "plan/clock/clock.hpp"
#include "plan/grid_shape.hpp"

namespace tangram {

/// A hop of a block or of its gradients into a row group. Hops that cross nodes have a link of their own.
struct HopSeconds {
  double block_s = 0;
  double grads_s = 0;  ///< 0 in the forward pass
  bool between = false;
};
/// The neighbours from which a row group receives: inside the inner ring, and over the outer ring. For gradients at the
/// end of an inner round: both places back. See GridStep.
struct RingHops {
  HopSeconds inner;
  HopSeconds outer;
  HopSeconds diagonal;
};

/// The exchange of a chunk of heads: its inputs must have come before it computes, its results leave when it has.
struct ExchangeSeconds {
  double in_s = 0;
  double back_s = 0;
  double pack_s = 0;    ///< heads are put together before inputs can leave
  double unpack_s = 0;  ///< results are taken apart when all chunks have computed
};

struct GridPass {
  GridShape shape;
  bool backward = false;
  std::vector<double> attend_s;            ///< [steps or chunks][row_groups]
  std::vector<RingHops> hops;              ///< kRing: [row_groups]
  double gather_s = 0, scatter_s = 0;      ///< kGather: all blocks but the own, and their gradients
  std::vector<ExchangeSeconds> exchanges;  ///< by chunk; none with one head rank
  bool hides = true;

  int num_chunks() const { return exchanges.empty() ? 1 : static_cast<int>(exchanges.size()); }
};
/// Not of kSubRings. By row group.
std::vector<RankTime> time_of(const GridPass& pass, ClockTrace* trace = nullptr);

/// A step of a rank of HybridCP, whose rings do not wait for each other.
struct SubRingSeconds {
  double attend_s = 0;
  double next_s = 0;   ///< of the next step's rows, which come meanwhile
  double grads_s = 0;  ///< of gradients that move once it has computed, beside the next step
};
/// `steps`: [ranks][steps].
std::vector<RankTime> time_of(const std::vector<std::vector<SubRingSeconds>>& steps, bool backward, bool hides,
                              ClockTrace* trace = nullptr);

}  // namespace tangram
