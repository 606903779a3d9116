// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The threads of the forward kernel that walk runs of keys: they issue TMA loads and tell the consumers what a step is.
#pragma once

#include <type_traits>

#include "attn/sm90/common/local_kv_ranges.cuh"
#include "attn/sm90/common/panels.cuh"
#include "attn/sm90/common/ready_flags.cuh"
#include "attn/sm90/forward/packing.cuh"
#include "attn/sm90/forward/rings.cuh"
#include "attn/sm90/forward/smem.cuh"
#include "attn/sm90/forward/step_messages.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace tangram::sm90 {

/// Walks the work ring, loads Q, K and V, and describes every step to the consumers. One thread, or two: one that only
/// loads, and one that only writes messages (Traits::kMetadataWarp), who need not know of each other. Of gathered runs
/// a warp loads: all its lanes walk, each loads boxes of keys, and the first one does what is done once.
template <typename Traits, bool kLoads = true, bool kWrites = true>
struct Producer {
  const typename Traits::Params& params;
  ForwardSmem<Traits>& smem;
  Rings<Traits> rings;
  // V of a step is loaded after K of the next one, which the consumers need first. They begin with the V of no step.
  // Of a step of a gathered run: what find_box says, and ~head.
  int32_t v_row = kNoLoad, v_head = 0;
  bool keys_missing = params.ready_flags.pending != 0;
  static constexpr bool kWarp = kLoads && Traits::kGathered;
  static constexpr bool kFewRegisters = kWarp && Traits::kProducerRegisters < 40;
  static constexpr int32_t kNoBox = INT32_MAX;
  static constexpr int32_t kNothing = -2;
  static constexpr int32_t kNoLoad = -1;
  static constexpr int32_t kLocalKv = -3;  // minus the row there

  __device__ __forceinline__ bool leads() const { return !kWarp || threadIdx.x == 0; }
  /// No lane is so late that it takes a phase for another, or reads what has been given back.
  __device__ __forceinline__ void meet() const {
    if constexpr (kWarp) __syncwarp();
  }

  __device__ __forceinline__ void arrive(uint64_t* barrier) const {
    if constexpr (kWarp) {
      if (leads()) ptx::mbarrier_arrive(barrier);
    } else {
      ptx::mbarrier_arrive(barrier);
    }
  }

  __device__ __forceinline__ void flush_v() {
    const bool gathered = kWarp && v_head < 0;
    if (!gathered && v_row == kNothing) return;
    const int stage = rings.template v_stage<-1>();
    ptx::mbarrier_wait(&smem.v_empty[stage], rings.template v_phase<-1>() ^ 1);
    if (gathered) {
      if constexpr (kWarp) load_boxes(1, smem.v[stage], &smem.v_full[stage], v_row, ~v_head);
      v_head = 0;
    } else if (!leads()) {
    } else if (v_row != kNoLoad) {
      const bool here = v_row >= 0;
      ptx::mbarrier_arrive_expect_tx(&smem.v_full[stage], Traits::kBytesV);
      load_rows<Traits::kAnyDim, Traits::kPanelsV, Traits::kPanelBytesK>(
          smem.v[stage], here ? &params.v_map : &params.v_local_map, &smem.v_full[stage],
          here ? v_row : kLocalKv - v_row, v_head);
    } else {
      ptx::mbarrier_arrive(&smem.v_full[stage]);
    }
    rings.advance_v();
    v_row = kNothing;
  }

  /// Waits for a free stage and returns its message, to be filled in before load_step() or skip_step().
  __device__ __forceinline__ StepMessage& begin_step() {
    ptx::mbarrier_wait(&smem.k_empty[rings.k_stage()], rings.k_phase() ^ 1);
    meet();
    return smem.step[rings.k_stage()];
  }

  __device__ __forceinline__ void load_q(const WorkMessage& work) {
    uint64_t* full = &smem.q_full[rings.q_stage()];
    ptx::mbarrier_wait(&smem.q_empty[rings.q_stage()], rings.q_phase() ^ 1);
    if (leads()) {
      WorkTileRows<Traits::kSplitKv>& rows = smem.work_tiles[rings.work_tile()];
      if constexpr (Traits::kSplitKv) {
        rows = {work.work_tile.row_begin, work.work_tile.row_end - work.work_tile.row_begin, work.group, work.part_row};
      } else {
        rows = {work.work_tile.row_begin, work.work_tile.row_end - work.work_tile.row_begin, work.group};
      }
      if constexpr (Traits::kAnyGqaRatio) {
        ptx::mbarrier_arrive_expect_tx(full, Traits::kPanelsQk * used_rows<Traits>(params) * kPanelRowBytes);
      } else {
        ptx::mbarrier_arrive_expect_tx(full, Traits::kBytesQ);
      }
      load_packed_rows<Traits::kAnyDim, Traits::kPanelsQk, Traits::kPanelBytesQ>(
          smem.q[rings.q_stage()], &params.q_map, full, first_head_of<Traits>(params, work.group),
          work.work_tile.row_begin);
    }
    rings.advance_q();
  }

  /// `row`: as v_row, of a tile.
  __device__ __forceinline__ void load_k(int32_t row, int32_t kv_head) {
    const bool here = row >= 0;
    if (leads()) {
      ptx::mbarrier_arrive_expect_tx(&smem.k_full[rings.k_stage()], Traits::kBytesK);
      load_rows<Traits::kAnyDim, Traits::kPanelsQk, Traits::kPanelBytesK>(
          smem.k[rings.k_stage()], here ? &params.k_map : &params.k_local_map, &smem.k_full[rings.k_stage()],
          here ? row : kLocalKv - row, kv_head);
    }
    rings.advance_k();
  }

  /// The lane's entry of params.groups in a step of a gathered run. Before the wait for the step, which hides the way.
  __device__ __forceinline__ int32_t read_entry(const TileRange& run, int32_t first_key) const {
    if constexpr (kWarp) {
      const int32_t k0 = max(min(first_key, run.k_end - Traits::kBlockN), 0);
      const int32_t key = k0 + 16 * static_cast<int32_t>(threadIdx.x);
      if (run.group_begin >= 0 && key < run.k_end) return __ldg(params.groups + run.group_begin + key / 16);
    }
    return 0;
  }
  static __device__ __forceinline__ int32_t num_groups(int32_t k0, int32_t k_end) {
    return min(k_end - k0, Traits::kBlockN) / 16;
  }
  /// Load of a lane in a step of a gathered run, whose groups of 16 keys are `count` entries of params.groups, one a
  /// lane. Returns the first key of its box, ~key for a box of 64 keys, or kNoBox.
  __device__ __forceinline__ int32_t find_box(int32_t entry, int32_t count) const {
    const auto lane = static_cast<int32_t>(kFewRegisters ? ptx::read_thread_index() : threadIdx.x);
    const uint32_t four = __ballot_sync(0xffffffff, entry < 0 && lane + 4 <= count);
    uint32_t begins = 0;
    int32_t next = 0;
#pragma unroll
    for (int32_t group = 0; group < Traits::kBlockN / 16; ++group) {
      if (group != next) continue;
      begins |= 1u << group;
      next += four >> group & 1 ? 4 : 1;
    }
    if (lane >= count || (begins >> lane & 1) == 0) return kNoBox;
    return entry < 0 && (four >> lane & 1) == 0 ? ~entry : entry;
  }
  /// Loads such boxes, once their keys are there, into a tile of K (`which` = 0) or V.
  __device__ __forceinline__ void load_boxes(int which, unsigned char* tile, uint64_t* full, int32_t box,
                                             int32_t kv_head) {
    static_assert(Traits::kBytesK == Traits::kBytesV && !Traits::kAnyDim);
    const int32_t groups =
        __popc(__ballot_sync(0xffffffff, box != kNoBox)) + 3 * __popc(__ballot_sync(0xffffffff, box < 0));
    if (leads()) ptx::mbarrier_arrive_expect_tx(full, groups * (Traits::kBytesK / (Traits::kBlockN / 16)));
    if (box == kNoBox) return;
    const bool large = box < 0;
    const int32_t key = large ? ~box : box, keys = large ? 64 : 16;
    if (which == 0 && params.ready_flags.pending != 0) await_keys(params.ready_flags, smem.arrived, key, key + keys);
    const int32_t row = local_kv_row(params.local_ranges, key, keys);
    const TensorMap* map = row < 0 ? &params.maps[which][large] : &params.local_kv_maps[which][large];
    const int32_t place = static_cast<int32_t>(threadIdx.x) * kRows16Bytes;
#pragma unroll
    for (int panel = 0; panel < Traits::kPanelsQk; ++panel) {
      ptx::tma_load_4d(tile + panel * Traits::kPanelBytesK + place, map, full, 0, row < 0 ? key : row, panel, kv_head);
    }
  }
  /// Like load_k and the code after it, for a step of a gathered run.
  __device__ __forceinline__ void load_gathered(const WorkMessage& work, int32_t entry, int32_t count, int32_t kv_head,
                                                bool first_of_work_tile) {
    const int32_t box = find_box(entry, count);
    load_boxes(0, smem.k[rings.k_stage()], &smem.k_full[rings.k_stage()], box, kv_head);
    rings.advance_k();
    flush_v();
    if (first_of_work_tile) load_q(work);
    v_row = box;
    v_head = ~kv_head;
  }

  /// Ends a step without loads.
  __device__ __forceinline__ void end_step() {
    arrive(&smem.k_full[rings.k_stage()]);
    rings.advance_k();
  }

  /// A work tile that sees nothing: one step without loads, so that the consumers write its zeros.
  __device__ __forceinline__ void push_empty_work_tile(const WorkMessage& work) {
    StepMessage& message = begin_step();
    if constexpr (kWrites) fill_words<Traits>(message, kStepFirst);
    end_step();
    if constexpr (kLoads) {
      flush_v();
      load_q(work);
      v_row = kNoLoad;
    }
  }

  __device__ __forceinline__ int32_t kv_head_of(const WorkMessage& work) const {
    return first_head_of<Traits>(params, work.group) / params.heads_per_kv;
  }

  __device__ __forceinline__ void push_run(const WorkMessage& work, const TileRange& run, bool first_run) {
    const int32_t kv_head = kv_head_of(work);
    if constexpr (kWrites) find_seen(params, smem, work.work_tile, run);
    const int32_t k_begin = run.k_begin, k_end = run.k_end;
    // Warpgroups read the row intervals with the first step that masks something: whole tiles before it are plain
    // steps.
    bool unread = true;
    for (int32_t first_key = k_begin; first_key < k_end; first_key += Traits::kBlockN) {
      const int32_t entry = read_entry(run, first_key);
      StepMessage& message = begin_step();
      const bool first = first_key == k_begin;
      // The last tile is moved back to the end of the run, so that V holds no rows that may be unwritten.
      const int32_t k0 = max(min(first_key, k_end - Traits::kBlockN), k_begin);
      if constexpr (kWrites)
        write_message(params, smem, message, run, k0, first_key, k_end, first && first_run, unread);
      if constexpr (!kLoads) {
        end_step();
      } else if (kWarp && run.group_begin >= 0) {
        // The head anew: there is no register to keep it.
        if constexpr (kWarp) load_gathered(work, entry, num_groups(k0, k_end), kv_head_of(work), first && first_run);
      } else {
        if (kWarp ? params.ready_flags.pending != 0 : keys_missing) {
          keys_missing = await_keys(params.ready_flags, smem.arrived, k0, min(k0 + Traits::kBlockN, k_end));
        }
        const int32_t elsewhere = local_kv_row(params.local_ranges, smem.local_range, k0, Traits::kBlockN);
        const int32_t row = elsewhere < 0 ? k0 : kLocalKv - elsewhere;
        load_k(row, kv_head);
        flush_v();
        if (first && first_run) load_q(work);
        v_row = row;
        v_head = kv_head;
      }
    }
  }

  /// Has run `r` on its way from memory, which takes as long as half a step, while the one before is loaded. This
  /// thread has no registers for it.
  __device__ __forceinline__ void fetch_run(int32_t r) {
    static_assert(sizeof(TileRange) == 48);
    const uint32_t place = ptx::smem_address(&smem.fetched.run[r & 1]);
    const auto* from = reinterpret_cast<const unsigned char*>(params.runs + r);
#pragma unroll
    for (uint32_t part = 0; part < sizeof(TileRange); part += 16) ptx::cp_async_16(place + part, from + part, false);
    ptx::cp_async_commit();
  }
  /// All runs of a work tile; the first came with it.
  __device__ __forceinline__ void push_fetched_runs(const WorkMessage& work, int32_t run_begin, int32_t run_end) {
    static_assert(!kWarp);
    if (run_begin + 1 < run_end) fetch_run(run_begin + 1);
    push_run(work, work.first_run, true);
    for (int32_t r = run_begin + 1; r < run_end; ++r) {
      ptx::cp_async_wait<0>();
      if (r + 1 < run_end) fetch_run(r + 1);
      push_run(work, smem.fetched.run[r & 1], false);
    }
  }

  __device__ __forceinline__ void run() {
    std::conditional_t<kFewRegisters, RingCount<Traits::kWorkSlots>, RingPosition<Traits::kWorkSlots>> slot;
    if constexpr (kLoads) smem.local_range = {0, 0, 0, 0};
    for (;;) {
      ptx::mbarrier_wait(&smem.work_full[slot.current()], slot.parity());
      const WorkMessage& work = smem.work[slot.current()];
      if (work.stop) break;
      const int32_t run_begin = work.work_tile.run_begin, run_end = work.work_tile.run_end;
      if (run_begin == run_end) {
        push_empty_work_tile(work);
      } else if constexpr (Traits::kFetchesRuns && kLoads) {
        push_fetched_runs(work, run_begin, run_end);
      } else {
        push_run(work, work.first_run, true);
        for (int32_t r = run_begin + 1; r < run_end; ++r) push_run(work, params.runs[r], false);
      }
      meet();
      arrive(&smem.work_empty[slot.current()]);
      slot.advance();
    }
    StepMessage& message = begin_step();
    if constexpr (kWrites) fill_words<Traits>(message, kStepStop);
    end_step();
    if constexpr (kLoads) flush_v();
  }
};

}  // namespace tangram::sm90
