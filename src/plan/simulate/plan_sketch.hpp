// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Memory of ranks without whole plans, which grow with the square of the ranks.
//
// NOTE [plan sketch]: the memory of a program follows from sizes alone: which tables a cast has does not matter. So a
// plan is made of one rank, rank 0, which stands for the rank in question. Its tables are empty, and its slices say
// only that there is something to compute. What it holds is what the programs of that plan hold: there is no second
// account of what is in memory when. O(ranks) where every rank meets every other.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/grid/grid.hpp"
#include "plan/grid/sub_ring_layout.hpp"
#include "plan/simulate/rank_needs.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

/// Sketch of Tangram's own plans.
class KvSketch {
 public:
  /// `backward_stages`: remote ones; `any_remote`: some rank has remote rows.
  KvSketch(const DistAttnConfig& config, const Dispatch& q_dispatch, const Dispatch& k_dispatch, bool any_remote,
           int backward_stages);

  /// Plan::peak_bytes of a rank.
  int64_t peak_bytes(const RankNeeds& needs);

 private:
  Plan plan_;
};

struct GridSketch {
  const DistAttnConfig& config;
  const GridShape& shape;
  const Dispatch& q_dispatch;
  const Dispatch& k_dispatch;
  const std::vector<int>& head_chunks;
  /// Whether some row group computes in a step, by step.
  const std::vector<bool>& computes;
};
/// Plan::peak_bytes of the rank that needs most. A step takes memory while it runs. Only sums stay, on ranks that
/// compute after the first step, and every rank that computes in a step has them. So the maximum over ranks is what a
/// rank would need that computes whenever another does.
int64_t largest_peak_bytes(const GridSketch& sketch);

/// Sketch of HybridCP plans.
struct SubRingSketch {
  const DistAttnConfig& config;
  const SubRingLayout& layout;
  int64_t q_rows = 0;  ///< of a rank
  int64_t k_rows = 0;
  bool computes_later = false;             ///< some rank in a step after the first
  const std::vector<bool>& computes_last;  ///< by rank: in the last of several steps
};
int64_t largest_peak_bytes(const SubRingSketch& sketch);

}  // namespace tangram::sim
