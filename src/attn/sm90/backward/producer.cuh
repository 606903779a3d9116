// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The producer warp of the backward kernel: draws work tiles, walks query heads and runs of queries, issues TMA loads.
#pragma once

#include "attn/sm90/backward/traits.cuh"
#include "attn/sm90/common/panels.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90::backward {

/// Smem::ones, by the first warps of a kernel.
template <typename Smem>
__device__ __forceinline__ void fill_ones(Smem& smem) {
  if (threadIdx.x < 96) {
    const uint32_t pair = threadIdx.x % 4, which = threadIdx.x / 32;  // words of two columns
    const uint32_t word = pair % 2 == 0 ? 0x3f803f80u : 0x3f80u;
    smem.ones[which][threadIdx.x % 32] = which == pair / 2 ? word : 0;
    ptx::fence_proxy_async();
  }
}

template <typename Traits>
struct Producer {
  const Params& params;
  Smem<Traits>& smem;
  // This thread has few registers: what can be read again is not kept.
  uint32_t step = 0;                        // in all work tiles
  uint32_t work_tile_count = 0;             // which says the slot of the current work tile
  int32_t head = 0, run_idx = 0, tile = 0;  // of the current step

  __device__ __forceinline__ uint32_t slot() const { return work_tile_count % Traits::kWorkTileSlots; }
  __device__ __forceinline__ const WorkTile& work_tile() const { return smem.work_tile[slot()]; }
  __device__ __forceinline__ const RangeQueryTiles& run_tiles() const { return params.run_tiles[run_idx]; }

  __device__ __forceinline__ void load_keys_from(const TensorMap& k, const TensorMap& v, int32_t row, int32_t kv_head) {
    ptx::mbarrier_arrive_expect_tx(&smem.k_full, Traits::kBytesK);
    load_rows<Traits::kAnyDim, Traits::kPanelsQk, Traits::kPanelBytesK>(smem.k, &k, &smem.k_full, row, kv_head);
    if constexpr (Traits::kMakesDk) {
      ptx::mbarrier_arrive_expect_tx(&smem.v_full, Traits::kBytesV);
      load_rows<Traits::kAnyDim, Traits::kPanelsV, Traits::kPanelBytesK>(smem.v, &v, &smem.v_full, row, kv_head);
    }
  }

  /// K and V of a work tile, once the consumers have left those of the work tile before.
  __device__ __forceinline__ void load_keys(const WorkTile& work_tile) {
    ptx::mbarrier_wait(&smem.kv_empty, (work_tile.flags & kWorkTileOddPhase ? 1 : 0) ^ 1);
    if (params.ready_flags.pending != 0)
      await_keys(params.ready_flags, smem.arrived, work_tile.row_begin, work_tile.row_end);
    const int32_t elsewhere = smem.local_kv_row;
    // Addresses of maps that are chosen would take registers that this thread has not.
    if (elsewhere < 0) {
      load_keys_from(params.k_map, params.v_map, work_tile.row_begin, work_tile.kv_head);
    } else {
      load_keys_from(params.k_local_map, params.v_local_map, elsewhere, work_tile.kv_head);
    }
  }

  __device__ __forceinline__ uint32_t wait_stage() {
    const uint32_t stage = step % Traits::kStages;
    ptx::mbarrier_wait(&smem.step_empty[stage], (step / Traits::kStages % 2) ^ 1);
    return stage;
  }

  /// A step without loads: a work tile that no query sees, or the end.
  __device__ __forceinline__ void push_empty_step(int32_t kind) {
    const uint32_t stage = wait_stage();
    smem.step[stage].kind = kind;
    smem.step[stage].work_tile_slot = static_cast<int32_t>(slot());
    smem.dq_target[step % Traits::kDqTargets] = {kind & kStepStop ? kDqStop : kDqNothing, 0};
    ptx::mbarrier_arrive(&smem.q_full[stage]);
    ptx::mbarrier_arrive(&smem.dout_full[stage]);  // no thread waits, but its phase must follow the steps
    ++step;
  }

  __device__ __forceinline__ void load_dout(uint32_t stage, int32_t q0) {
    load_rows<Traits::kAnyDim, Traits::kPanelsV, Traits::kPanelBytesQ>(smem.dout[stage], &params.dout_map,
                                                                       &smem.dout_full[stage], q0, head);
  }

  /// One step: Q, then dout with its row statistics. The loads come before the message and before the arrivals that
  /// announce them, since the consumers have waited for this stage long enough. A single-stage dout comes first, since
  /// it is released before Q. For a step without loads, which does not wait for it, wait_stage sees that it was
  /// released.
  __device__ __forceinline__ void push_step() {
    int32_t q0;
    if constexpr (Traits::kSingleStageDout) {
      q0 = params.q_tiles[tile].row_begin;
      ptx::mbarrier_wait(&smem.lone.dout_empty, step % 2 ^ 1);
      load_dout(0, q0);
      ptx::mbarrier_arrive_expect_tx(&smem.dout_full[0], Traits::kBytesDout);
    }
    const uint32_t stage = wait_stage();
    const int32_t accum_tile = head * params.num_q_tiles + tile;
    if constexpr (!Traits::kSingleStageDout) q0 = params.q_tiles[tile].row_begin;
    smem.dq_target[step % Traits::kDqTargets] = {accum_tile, Traits::kDeterministic ? smem.segment : 0};
    load_rows<Traits::kAnyDim, Traits::kPanelsQk, Traits::kPanelBytesQ>(smem.q[stage], &params.q_map,
                                                                        &smem.q_full[stage], q0, head);
    if constexpr (!Traits::kSingleStageDout) load_dout(stage, q0);
    ptx::bulk_load(smem.stats[stage], params.stats + accum_tile * int64_t{kStatsFloats}, Traits::kStatsBytes,
                   &smem.q_full[stage]);
    const WorkTile& work_tile = smem.work_tile[slot()];
    const TileRange& run = params.runs[run_idx];
    StepMessage& message = smem.step[stage];
    message.work_tile_slot = static_cast<int32_t>(slot());
    message.q0 = q0;
    const int32_t q_end = params.q_tiles[tile].row_end;
    const bool all = run.full_begin <= q0 && q0 + kBlockM <= min(run.full_end, q_end) &&
                     work_tile.row_end - work_tile.row_begin == kBlockN;
    message.kind = all ? kStepPlain : kStepMasked;
    if (!all) {
      describe_run(message, run);
      message.q_end = q_end;
    }
    if (params.covered_queries) {
      const uint64_t covered = params.covered_queries[tile];
      message.covered[0] = static_cast<uint32_t>(covered);
      message.covered[1] = static_cast<uint32_t>(covered >> 32);
      if (covered != ~uint64_t{0}) message.kind |= kStepZeroRows;
    }
    ptx::mbarrier_arrive_expect_tx(&smem.q_full[stage], Traits::kBytesQ + Traits::kStatsBytes);
    if constexpr (!Traits::kSingleStageDout) ptx::mbarrier_arrive_expect_tx(&smem.dout_full[stage], Traits::kBytesDout);
    ++step;
  }

  __device__ __forceinline__ void enter_run() {
    tile = work_tile().flags & kWorkTileDescending ? run_tiles().end - 1 : run_tiles().first;
    if constexpr (Traits::kDeterministic) smem.segment = run_tiles().segment;
  }
  __device__ __forceinline__ void enter_first_run(const WorkTile& work_tile) {
    run_idx = work_tile.flags & kWorkTileDescending ? work_tile.run_end - 1 : work_tile.run_begin;
    enter_run();
  }
  /// The next query tile in the order of the walk; false when the work tile has no more.
  __device__ __forceinline__ bool next_tile(const WorkTile& work_tile) {
    tile += work_tile.flags & kWorkTileDescending ? -1 : 1;
    if (run_tiles().first <= tile && tile < run_tiles().end) {
      if (Traits::kDeterministic && params.dq_order_segments[smem.segment + 1].first_tile == tile) ++smem.segment;
      return true;
    }
    run_idx += work_tile.flags & kWorkTileDescending ? -1 : 1;
    if (run_idx < work_tile.run_begin || run_idx >= work_tile.run_end) return false;
    enter_run();
    return true;
  }
  __device__ __forceinline__ void next_step(const WorkTile& work_tile) {
    if (!(work_tile.flags & kWorkTileHeadsInside)) {
      if (next_tile(work_tile)) return;
      ++head;
      enter_first_run(work_tile);
    } else if (++head == work_tile.head_end) {
      head = work_tile.head_begin;
      next_tile(work_tile);
    }
  }

  /// Pieces are joined by the one that ends last, which then waits for no piece that is still at its steps. Drawn
  /// before the last step is pushed, when the consumers have others to do.
  __device__ __forceinline__ void draw_place() {
    WorkTile& work_tile = smem.work_tile[slot()];
    work_tile.head_split = atomicAdd(params.split_semaphore + work_tile.accum_tile, kPieceArrived) / kPieceArrived;
  }

  /// The work tile is the one in the current slot.
  __device__ __forceinline__ void push_work_tile() {
    const WorkTile& work_tile = smem.work_tile[slot()];
    if (work_tile.num_steps != 0) load_keys(work_tile);
    // The keys are the caller's; statistics, sums and the ticket come from the kernel before.
    ptx::grid_dependency_wait();
    if (work_tile.num_steps == 0) {
      push_empty_step(kStepPlain);
      if constexpr (Traits::kAtOnce == 2) push_empty_step(kStepAbsent);
    } else {
      head = work_tile.head_begin;
      enter_first_run(work_tile);
#pragma unroll 1
      for (int32_t left = work_tile.num_steps; left > 0; --left) {
        if (!Traits::kDeterministic && left == 1 && work_tile.num_head_splits > 1) draw_place();
        push_step();
        next_step(work_tile);
      }
      if (Traits::kAtOnce == 2 && step % 2 != 0) push_empty_step(kStepAbsent);
    }
    ++work_tile_count;
  }

  /// kWorkTileOddPhase or 0, by the work tiles with steps so far. For a thread that has no register for it.
  __device__ __forceinline__ int32_t parity_after_last() const {
    if (work_tile_count == 0) return 0;
    const WorkTile& last = smem.work_tile[(work_tile_count - 1) % Traits::kWorkTileSlots];
    return (last.flags & kWorkTileOddPhase) ^ (last.num_steps != 0 ? kWorkTileOddPhase : 0);
  }

  /// One thread. Tickets are drawn in the order of the work tiles; the first one of a CTA is its index.
  __device__ __forceinline__ void run_work_tiles() {
    int32_t parity = 0;  // of the work tiles with steps so far
    int32_t ticket = static_cast<int32_t>(blockIdx.x);
    while (ticket < smem.mask_info.num_work_tiles) {
      WorkTile& work_tile = smem.work_tile[slot()];
#pragma unroll 1
      for (int i = 0; i < static_cast<int>(sizeof(WorkTile) / 16); ++i) {
        reinterpret_cast<uint4*>(&work_tile)[i] = reinterpret_cast<const uint4*>(params.work_tiles + ticket)[i];
      }
      smem.local_kv_row = local_kv_row(params.local_ranges, work_tile.row_begin, kBlockN);
      work_tile.flags |= (Traits::kAnyDim ? parity_after_last() : parity) |
                         (smem.mask_info.walk.descending ? kWorkTileDescending : 0) |
                         (smem.mask_info.walk.heads_innermost ? kWorkTileHeadsInside : 0);
      if (!Traits::kAnyDim && work_tile.num_steps != 0) parity ^= kWorkTileOddPhase;
      push_work_tile();
      // Not earlier: a ticket drawn while this work tile has many steps left would wait for it. The loads in flight
      // hide this.
      ticket = atomicAdd(params.ticket, 1) + static_cast<int32_t>(gridDim.x);
    }
    push_empty_step(kStepStop);
    if constexpr (Traits::kAtOnce == 2) push_empty_step(kStepStop);
  }
};

}  // namespace tangram::sm90::backward
