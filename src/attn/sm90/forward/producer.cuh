// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The threads of the forward kernel that walk runs of keys: they issue TMA loads and tell the consumers what a step is.
#pragma once

#include "attn/sm90/common/arrivals.cuh"
#include "attn/sm90/common/key_stretches.cuh"
#include "attn/sm90/common/panels.cuh"
#include "attn/sm90/forward/rings.cuh"
#include "attn/sm90/forward/smem.cuh"
#include "attn/sm90/forward/step_messages.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace tangram::sm90 {

/// Walks the work ring, loads Q, K and V, and describes every step to the consumers. One thread, or two: one that only
/// loads, and one that only writes messages (Traits::kScribe), who need not know of each other.
template <typename Traits, bool kLoads = true, bool kWrites = true>
struct Producer {
  const typename Traits::Params& params;
  ForwardSmem<Traits>& smem;
  Rings<Traits> rings;
  // V of a step is loaded after K of the next one, which the consumers need first. They begin with the V of no step.
  int32_t v_row = kNoLoad, v_head = 0;
  bool keys_missing = params.arrivals.pending != 0;
  static constexpr int32_t kNothing = -2;
  static constexpr int32_t kNoLoad = -1;
  static constexpr int32_t kElsewhere = -3;  // minus the row there

  __device__ __forceinline__ void flush_v() {
    if (v_row == kNothing) return;
    const int stage = rings.template v_stage<-1>();
    ptx::mbarrier_wait(&smem.v_empty[stage], rings.template v_phase<-1>() ^ 1);
    if (flush_groups(stage)) {
    } else if (v_row != kNoLoad) {
      const bool here = v_row >= 0;
      ptx::mbarrier_arrive_expect_tx(&smem.v_full[stage], Traits::kBytesV);
      load_rows<Traits::kAnyDim, Traits::kPanelsV, Traits::kPanelBytesK>(
          smem.v[stage], here ? &params.v_map : &params.v_elsewhere_map, &smem.v_full[stage],
          here ? v_row : kElsewhere - v_row, v_head);
    } else {
      ptx::mbarrier_arrive(&smem.v_full[stage]);
    }
    rings.advance_v();
    v_row = kNothing;
  }

  /// Waits for a free stage and returns its message, to be filled in before load_step() or skip_step().
  __device__ __forceinline__ StepMessage& begin_step() {
    ptx::mbarrier_wait(&smem.k_empty[rings.k_stage()], rings.k_phase() ^ 1);
    return smem.step[rings.k_stage()];
  }

  __device__ __forceinline__ void load_q(const WorkMessage& work) {
    uint64_t* full = &smem.q_full[rings.q_stage()];
    ptx::mbarrier_wait(&smem.q_empty[rings.q_stage()], rings.q_phase() ^ 1);
    ItemRows<Traits::kParts>& rows = smem.items[rings.item()];
    if constexpr (Traits::kParts) {
      rows = {work.item.row_begin, work.item.row_end - work.item.row_begin, work.group, work.part_row};
    } else {
      rows = {work.item.row_begin, work.item.row_end - work.item.row_begin, work.group};
    }
    ptx::mbarrier_arrive_expect_tx(full, Traits::kBytesQ);
    load_packed_rows<Traits::kAnyDim, Traits::kPanelsQk, Traits::kPanelBytesQ>(
        smem.q[rings.q_stage()], &params.q_map, full, work.group << params.pack_log2, work.item.row_begin);
    rings.advance_q();
  }

  /// `row`: as v_row, of a tile.
  __device__ __forceinline__ void load_k(int32_t row, int32_t kv_head) {
    const bool here = row >= 0;
    ptx::mbarrier_arrive_expect_tx(&smem.k_full[rings.k_stage()], Traits::kBytesK);
    load_rows<Traits::kAnyDim, Traits::kPanelsQk, Traits::kPanelBytesK>(
        smem.k[rings.k_stage()], here ? &params.k_map : &params.k_elsewhere_map, &smem.k_full[rings.k_stage()],
        here ? row : kElsewhere - row, kv_head);
    rings.advance_k();
  }

  /// As load_step, of a gathered run.
  __device__ __forceinline__ void load_gathered(const WorkMessage& work, const KeyGroups& groups, bool first_of_item) {
    if constexpr (Traits::kGathered) {
      smem.pending.k = groups;
      load_groups(0, smem.k[rings.k_stage()], &smem.k_full[rings.k_stage()], smem.pending.k);
      rings.advance_k();
      flush_v();
      if (first_of_item) load_q(work);
      smem.pending.v = smem.pending.k;
      v_row = kNoLoad;  // but not nothing
    }
  }
  /// V of a step of a gathered run, if one is to come.
  __device__ __forceinline__ bool flush_groups(int stage) {
    if constexpr (Traits::kGathered) {
      if (smem.pending.v.count == 0) return false;
      load_groups(1, smem.v[stage], &smem.v_full[stage], smem.pending.v);
      smem.pending.v.count = 0;
      return true;
    }
    return false;
  }
  /// Loads groups of keys, once they are there, into a tile of K (`which` = 0) or V.
  __device__ __forceinline__ void load_groups(int which, unsigned char* tile, uint64_t* full, const KeyGroups& groups) {
    if constexpr (Traits::kGathered) {
      static_assert(Traits::kBytesK == Traits::kBytesV && !Traits::kAnyDim);
      ptx::mbarrier_arrive_expect_tx(full, groups.count * (Traits::kBytesK / (Traits::kBlockN / 16)));
      int32_t next = __ldg(params.groups + groups.first);
#pragma unroll 1
      for (int32_t group = 0; group < groups.count;) {
        const int32_t entry = next;
        const bool large = entry < 0 && group + 4 <= groups.count;
        const int32_t key = entry < 0 ? ~entry : entry, count = large ? 64 : 16;
        const int32_t following = group + count / 16;
        if (following < groups.count) next = __ldg(params.groups + groups.first + following);
        if (which == 0 && keys_missing) keys_missing = await_keys(params.arrivals, smem.arrived, key, key + count);
        const int32_t row = row_elsewhere(params.stretches, smem.stretch, key, count);
        const TensorMap* map = row < 0 ? &params.maps[which][large] : &params.elsewhere_maps[which][large];
#pragma unroll
        for (int panel = 0; panel < Traits::kPanelsQk; ++panel) {
          ptx::tma_load_4d(tile + panel * Traits::kPanelBytesK + group * kRows16Bytes, map, full, 0,
                           row < 0 ? key : row, panel, groups.kv_head);
        }
        group = following;
      }
    }
  }

  /// Ends a step without loads.
  __device__ __forceinline__ void end_step() {
    ptx::mbarrier_arrive(&smem.k_full[rings.k_stage()]);
    rings.advance_k();
  }

  /// An item that sees nothing: one step without loads, so that the consumers write its zeros.
  __device__ __forceinline__ void push_empty_item(const WorkMessage& work) {
    StepMessage& message = begin_step();
    if constexpr (kWrites) fill_words<Traits>(message, kStepFirst);
    end_step();
    if constexpr (kLoads) {
      flush_v();
      load_q(work);
      v_row = kNoLoad;
    }
  }

  __device__ __forceinline__ void push_run(const WorkMessage& work, const TileRun& run, bool first_run) {
    const int32_t kv_head = (work.group << params.pack_log2) / params.heads_per_kv;
    if constexpr (kWrites) find_seen(params, smem, work.item, run);
    const int32_t k_begin = run.k_begin, k_end = run.k_end;
    // Warpgroups read the row intervals with the first step that masks something: whole tiles before it are plain
    // steps.
    bool unread = true;
    for (int32_t first_key = k_begin; first_key < k_end; first_key += Traits::kBlockN) {
      StepMessage& message = begin_step();
      const bool first = first_key == k_begin;
      // The last tile is moved back to the end of the run, so that V holds no rows that nobody may have written.
      const int32_t k0 = max(min(first_key, k_end - Traits::kBlockN), k_begin);
      if constexpr (kWrites)
        write_message(params, smem, message, run, k0, first_key, k_end, first && first_run, unread);
      if constexpr (!kLoads) {
        end_step();
      } else if (Traits::kGathered && run.group_begin >= 0) {
        load_gathered(work, {run.group_begin + k0 / 16, min(k_end - k0, Traits::kBlockN) / 16, kv_head},
                      first && first_run);
      } else {
        if (keys_missing) {
          keys_missing = await_keys(params.arrivals, smem.arrived, k0, min(k0 + Traits::kBlockN, k_end));
        }
        const int32_t elsewhere = row_elsewhere(params.stretches, smem.stretch, k0, Traits::kBlockN);
        const int32_t row = elsewhere < 0 ? k0 : kElsewhere - elsewhere;
        load_k(row, kv_head);
        flush_v();
        if (first && first_run) load_q(work);
        v_row = row;
        v_head = kv_head;
      }
    }
  }

  __device__ __forceinline__ void run() {
    RingPosition<Traits::kWorkSlots> slot;
    if constexpr (kLoads) smem.stretch = {0, 0, 0, 0};
    if constexpr (kLoads && Traits::kGathered) smem.pending.v.count = 0;
    for (;;) {
      ptx::mbarrier_wait(&smem.work_full[slot.stage], slot.phase);
      const WorkMessage& work = smem.work[slot.stage];
      if (work.stop) break;
      const int32_t run_begin = work.item.run_begin, run_end = work.item.run_end;
      if (run_begin == run_end) {
        push_empty_item(work);
      } else {
        push_run(work, work.first_run, true);
        for (int32_t r = run_begin + 1; r < run_end; ++r) push_run(work, params.runs[r], false);
      }
      ptx::mbarrier_arrive(&smem.work_empty[slot.stage]);
      slot.advance();
    }
    StepMessage& message = begin_step();
    if constexpr (kWrites) fill_words<Traits>(message, kStepStop);
    end_step();
    if constexpr (kLoads) flush_v();
  }
};

}  // namespace tangram::sm90
