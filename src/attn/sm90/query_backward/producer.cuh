// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The threads that feed the consumers. One draws work tiles and writes the messages of steps, one loads K, Q and dout,
// one loads V. Each has few registers: what can be read again is not kept.
#pragma once

#include "attn/sm90/query_backward/traits.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90::query_backward {

/// Draws work tiles and writes a message for each step.
template <typename Traits>
struct Planner {
  const Params& params;
  Smem<Traits>& smem;
  uint32_t step = 0;             // in all work tiles
  uint32_t work_tile_count = 0;  // of work tiles that see keys

  /// Order of work as in the forward kernel (locate_work): sections of head groups, work tiles in the order of the
  /// list, the groups innermost. Returns the head group.
  __device__ __forceinline__ int32_t locate(int32_t ticket) {
    const int32_t section_size = params.num_work_tiles * params.groups_per_section;
    const int32_t section = ticket / section_size;
    const int32_t in_section = ticket - section * section_size;
    const int32_t first_group = section * params.groups_per_section;
    const int32_t groups = min(params.groups_per_section, params.num_head_groups - first_group);
    const int32_t work_tile = in_section / groups;
    static_assert(sizeof(GroupWorkTile) == 2 * sizeof(int4));
    for (int i = 0; i < 2; ++i) {
      reinterpret_cast<int4*>(&smem.work_tile)[i] =
          __ldg(reinterpret_cast<const int4*>(params.work_tiles + work_tile) + i);
    }
    return smem.work_tile.head_group >= 0 ? smem.work_tile.head_group : first_group + in_section - work_tile * groups;
  }

  __device__ __forceinline__ void push_step(int32_t head_group, int32_t first, int32_t kind) {
    const uint32_t stage = step % Traits::kStagesK;
    ptx::mbarrier_wait(&smem.k_empty[stage], step / Traits::kStagesK % 2 ^ 1);
    StepMessage& to = smem.step[stage];
    const int32_t count = min(smem.work_tile.num_groups - first, kStepGroups);
    to.kind = kind;
    to.count = count;
    to.head = head_group << params.pack_log2;
    to.kv_head = (head_group << params.pack_log2) / params.heads_per_kv;
    to.row_begin = smem.work_tile.row_begin;
    to.num_rows = smem.work_tile.row_end - smem.work_tile.row_begin;
    const int32_t first_masked = smem.work_tile.num_groups - smem.work_tile.num_masked;
    to.masked_from = min(max(first_masked - first, 0), count);
    to.mask_begin = (smem.work_tile.mask_begin + max(first - first_masked, 0)) * kGroupKeys;
    const int32_t* groups = params.groups + smem.work_tile.group_begin + first;
#pragma unroll 1
    for (int32_t group = 0; group < count; ++group) to.groups[group] = __ldg(groups + group);
    ptx::mbarrier_arrive(&smem.planned[stage]);
    ++step;
  }

  __device__ __forceinline__ void run() {
    const int32_t num_tickets = params.num_work_tiles * params.num_head_groups;
    int32_t ticket = static_cast<int32_t>(blockIdx.x);
    while (ticket < num_tickets) {
      const int32_t head_group = locate(ticket);
      const int32_t odd = work_tile_count % 2 != 0 ? kStepOddWorkTile : 0;
      const int32_t num_groups = smem.work_tile.num_groups;
      if (num_groups == 0) push_step(head_group, 0, kStepFirst | kStepLast);
#pragma unroll 1
      for (int32_t first = 0; first < num_groups; first += kStepGroups) {
        push_step(head_group, first,
                  odd | (first == 0 ? kStepFirst : 0) | (first + kStepGroups >= num_groups ? kStepLast : 0));
      }
      if (num_groups != 0) ++work_tile_count;
      // Not earlier: a ticket drawn while this work tile has many steps left would wait for it.
      ticket = atomicAdd(params.ticket, 1) + static_cast<int32_t>(gridDim.x);
    }
    smem.work_tile = GroupWorkTile{};
    push_step(0, 0, kStepStop);
  }
};

/// Loads K of each step and what comes with the first of a work tile (kV = false), or V.
template <typename Traits, bool kV>
struct Loader {
  const Params& params;
  Smem<Traits>& smem;

  /// Groups of keys of a step into a tile, and zeros behind them.
  __device__ __forceinline__ void load_groups(unsigned char* tile, uint64_t* full, const StepMessage& message) {
    ptx::mbarrier_arrive_expect_tx(full, Traits::kBytesK);
    const int32_t count = message.count, head = message.kv_head;
#pragma unroll 1
    for (int32_t group = 0; group < kStepGroups;) {
      const int32_t entry = group < count ? message.groups[group] : params.num_key_groups * kGroupKeys;  // no key
      const bool large = entry < 0 && group + 4 <= count;
      const TensorMap* map = &params.maps[kV][large];
#pragma unroll
      for (int panel = 0; panel < Traits::kPanelsQk; ++panel) {
        ptx::tma_load_4d(tile + panel * Traits::kPanelBytesK + group * kRows16Bytes, map, full, 0, first_key(entry),
                         panel, head);
      }
      group += large ? 4 : 1;
    }
  }

  __device__ __forceinline__ void load_work_tile(const StepMessage& message) {
    ptx::mbarrier_wait(&smem.work_tile_empty, message.kind & kStepOddWorkTile ? 0 : 1);
    const int32_t row = message.row_begin, head = message.head;
    const int32_t tile = row / (kRows >> params.pack_log2);
    ptx::mbarrier_arrive_expect_tx(&smem.q_full, Traits::kBytesQ + kStatsFloats * 4);
    load_packed_rows<false, Traits::kPanelsQk, Traits::kPanelBytesQ>(smem.q, &params.q_map, &smem.q_full, head, row);
    ptx::bulk_load(smem.stats,
                   params.stats + (int64_t{head >> params.pack_log2} * params.num_tiles + tile) * kStatsFloats,
                   kStatsFloats * 4, &smem.q_full);
    ptx::mbarrier_arrive_expect_tx(&smem.dout_full, Traits::kBytesQ);
    load_packed_rows<false, Traits::kPanelsQk, Traits::kPanelBytesQ>(smem.dout, &params.dout_map, &smem.dout_full, head,
                                                                     row);
  }

  __device__ __forceinline__ void run() {
    for (uint32_t step = 0;; ++step) {
      const uint32_t stage = step % Traits::kStagesK;
      ptx::mbarrier_wait(&smem.planned[stage], step / Traits::kStagesK % 2);
      const StepMessage& message = smem.step[stage];
      if constexpr (kV) {
        if (message.kind & kStepStop) break;
        ptx::mbarrier_wait(&smem.v_empty, step % 2 ^ 1);
        if (message.count == 0) {
          ptx::mbarrier_arrive(&smem.v_full);
        } else {
          load_groups(smem.v, &smem.v_full, message);
        }
      } else if (message.count == 0) {
        ptx::mbarrier_arrive(&smem.k_full[stage]);
        if (message.kind & kStepStop) break;
      } else {
        load_groups(smem.k[stage], &smem.k_full[stage], message);
        if (message.kind & kStepFirst) load_work_tile(message);
      }
    }
  }
};

}  // namespace tangram::sm90::query_backward
