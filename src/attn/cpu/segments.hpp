// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which vectors of a panel have work in which steps of a block. Fully masked parts are skipped in units of a vector of
// lanes by eight steps.
#pragma once

#include "attn/cpu/kernels.hpp"
#include "attn/cpu/simd.hpp"

namespace tangram::cpu::TANGRAM_ISA {

inline constexpr int kStepGroup = 8;

/// Steps [begin, end) in which vectors [vec_begin, vec_end) of the panel have work.
struct Segment {
  int begin, end;
  int vec_begin, vec_end;
};

/// The lanes of panel `panel` that see each step.
TANGRAM_INLINE uint64_t panel_bits(const StepBlock& block, int panel, int step) {
  const int first = panel * kPanel;
  const uint64_t word = block.lanes[first / 64][step] >> (first % 64);
  return kPanel == 64 ? word : word & ((uint64_t{1} << (kPanel % 64)) - 1);
}

/// Fills `segments` (room for kMaxSteps / kStepGroup) and returns their number. `num_lanes`: lanes of the panel in use.
TANGRAM_INLINE int find_segments(const StepBlock& block, int panel, int num_lanes, Segment* segments) {
  const int all_vecs = (num_lanes + kLanes - 1) / kLanes;
  if (block.full) {
    segments[0] = {0, block.num_steps, 0, all_vecs};
    return 1;
  }
  int num = 0;
  for (int begin = 0; begin < block.num_steps; begin += kStepGroup) {
    const int end = min_of(begin + kStepGroup, block.num_steps);
    uint64_t any = 0;
    for (int s = begin; s < end; ++s) any |= panel_bits(block, panel, s);
    if (any == 0) continue;
    const int vec_begin = __builtin_ctzll(any) / kLanes;
    const int vec_end = (63 - __builtin_clzll(any)) / kLanes + 1;
    Segment* last = num > 0 ? &segments[num - 1] : nullptr;
    if (last != nullptr && last->end == begin && last->vec_begin == vec_begin && last->vec_end == vec_end) {
      last->end = end;
    } else {
      segments[num++] = {begin, end, vec_begin, vec_end};
    }
  }
  return num;
}

}  // namespace tangram::cpu::TANGRAM_ISA
