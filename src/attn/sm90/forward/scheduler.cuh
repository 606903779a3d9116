// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The thread of the forward kernel that takes work for its CTA.
#pragma once

#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/forward/smem.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90 {

/// Order of work: sections of head groups whose K and V share the L2 cache. In a section by work tile, longest first,
/// head groups innermost, so that CTAs that run together read the same keys.
__device__ __forceinline__ void locate_work(const ForwardParams& params, int32_t ticket, int32_t* work_tile,
                                            int32_t* group) {
  const int32_t section_size = params.num_work_tiles * params.groups_per_section;
  const int32_t section = ticket / section_size;
  const int32_t in_section = ticket - section * section_size;
  const int32_t first_group = section * params.groups_per_section;
  const int32_t groups = min(params.groups_per_section, params.num_groups - first_group);
  *work_tile = in_section / groups;
  *group = first_group + in_section - *work_tile * groups;
}

/// Draws tickets and puts the work tiles, with their first run, into the work ring. One thread. A ticket is drawn when
/// the producer begins the previous work tile: just early enough to hide its latency. A ticket drawn earlier would wait
/// for this CTA while others run out of work. The first is not drawn: its work tile is on its way before the kernels
/// that this one depends on have ended.
template <typename Traits>
__device__ __forceinline__ void run_scheduler(const ForwardParams& params, ForwardSmem<Traits>& smem) {
  RingPosition<Traits::kWorkSlots> slot;
  const int32_t num_tickets = params.num_work_tiles * params.num_groups;
  int32_t ticket = static_cast<int32_t>(blockIdx.x);
  for (bool first = true;; first = false) {
    ptx::mbarrier_wait(&smem.work_empty[slot.stage], slot.phase ^ 1);
    if (!first) ticket = atomicAdd(&params.counters[0], 1) + static_cast<int32_t>(gridDim.x);
    WorkMessage& message = smem.work[slot.stage];
    const bool stop = ticket >= num_tickets;
    message.stop = stop;
    if (!stop) {
      int32_t work_tile;
      locate_work(params, ticket, &work_tile, &message.group);
      if (params.work_tile_groups != nullptr) message.group = params.work_tile_groups[work_tile];
      const MaskTile tile = params.work_tiles[work_tile];
      message.work_tile = tile;
      if constexpr (Traits::kAnyDim) {
        message.part_row = params.part_rows == nullptr ? -1 : params.part_rows[work_tile];
      } else if constexpr (Traits::kSplitKv) {
        message.part_row = params.part_rows[work_tile];
      }
      if (tile.run_begin < tile.run_end) message.first_run = params.runs[tile.run_begin];
    }
    ptx::mbarrier_arrive(&smem.work_full[slot.stage]);
    if (first) ptx::grid_dependency_wait();
    if (stop) break;
    slot.advance();
  }
  // The last CTA to run out of work leaves the counters as it found them.
  __threadfence();
  if (atomicAdd(&params.counters[1], 1) == static_cast<int32_t>(gridDim.x) - 1) {
    params.counters[0] = 0;
    params.counters[1] = 0;
  }
}

}  // namespace tangram::sm90
