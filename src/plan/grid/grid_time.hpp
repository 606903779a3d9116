// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How the passes of a grid play out in time, from the seconds of their parts: the planner's prediction and the
// simulator differ in where these seconds come from, not in what waits for what.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tangram {

/// A pass of the slowest rank.
struct GridTime {
  double total_s = 0;
  double compute_s = 0;

  double exposed_s() const { return total_s > compute_s ? total_s - compute_s : 0; }
};

/// A chunk of heads: its inputs must have come before it computes, its results leave when it has.
struct ChunkSeconds {
  double in_s = 0;
  double compute_s = 0;
  double back_s = 0;
  double pack_s = 0;    ///< heads are put together before inputs can leave
  double unpack_s = 0;  ///< results are taken apart when all chunks have computed
};
/// One chunk after the other over one link: inputs of all chunks are packed and sent for at once, results leave when a
/// chunk has ended. `hides`: transfers go on beside compute; otherwise everything adds up.
GridTime play_chunks(std::span<const ChunkSeconds> chunks, bool hides);

/// A hop of a block or of its gradients into a row group. Hops that cross nodes have a link of their own.
struct HopSeconds {
  double block_s = 0;
  double grads_s = 0;  ///< 0 in the forward pass
  bool between = false;
};
/// The neighbours from which a row group receives: inside the inner ring, over the outer ring, and for gradients at the
/// end of an inner round, both places back. See GridStep.
struct RingHops {
  HopSeconds inner;
  HopSeconds outer;
  HopSeconds diagonal;
};

/// A ring of rings over row groups (`inner` = their number: one ring). Groups do not step together: each starts a step
/// when it has ended the one before and the block has come, which is sent for when both sides have started the step
/// that it was held in; a link carries one transfer at a time; gradients are added up in a step before its own leave.
struct RingPlay {
  int inner = 1;
  std::vector<RingHops> hops;    ///< [row_groups]
  std::vector<float> compute_s;  ///< [row_groups][row_groups]: of each group, step by step
  bool backward = false;
  bool hides = true;

  int row_groups() const { return static_cast<int>(hops.size()); }
};
GridTime play_ring(const RingPlay& play);

/// A step of a rank in rings that do not wait for each other.
struct TurnSeconds {
  double compute_s = 0;
  double next_s = 0;   ///< of the next step's rows, which come meanwhile
  double grads_s = 0;  ///< of gradients that travel once it has computed, beside the next step
};
GridTime play_turns(std::span<const TurnSeconds> turns, bool hides);

/// Own keys compute while all others come; gradients leave at the end.
GridTime play_gather(double own_s, double others_s, double gather_s, double scatter_s, bool hides);

}  // namespace tangram
