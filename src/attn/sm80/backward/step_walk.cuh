// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The steps of a work tile of a backward kernel: which tile of queries comes next, and which of its queries see
// a key.
//
// NOTE [order of additions] Deterministic calls add to a dQ tile in the order of the work tiles' tickets. A step's turn
// counts the steps of work tiles with smaller tickets that add to the same dQ tile. A work tile waits only for work
// tiles with smaller tickets. CTAs have finished these or compute them now, so any number of CTAs runs without
// deadlock.
#pragma once

#include "attn/sm80/backward/params.hpp"
#include "attn/sm80/common/key_sources.cuh"
#include "attn/sm80/common/tiles.cuh"
#include "attn/sm80/shapes.hpp"

namespace tangram::sm80::backward {

/// State of the current work tile, in shared memory.
struct WorkState {
  WorkTile tile;
  int32_t ticket;  // of the work tile after this one
  int32_t place;   // of this head split among those of its keys, by arrival
  BackwardMaskInfo mask_info;
  ArrivedKeys arrived;
};

/// A step.
struct StepCursor {
  int32_t left = 0;  // steps that are left, this one included
  int32_t head = 0, run = 0, tile = 0;
  int32_t segment = 0;    // deterministic: dq_order_segments[segment] has the turn of `tile`
  QueryTile rows;         // of `tile`
  uint64_t is_there = 0;  // bit i: query i of `tile` exists and sees a key
};

/// Walks the steps of a work tile.
struct StepWalk {
  const Params& params;
  WorkState& state;
  StepCursor next;  // the step whose Q is copied next
  bool is_descending = false, heads_innermost = false;

  __device__ StepWalk(const Params& params_in, WorkState& state_in) : params(params_in), state(state_in) {}

  __device__ __forceinline__ const WorkTile& work() const { return state.tile; }

  __device__ __forceinline__ void enter_run() {
    const RangeQueryTiles& tiles = params.run_tiles[next.run];
    next.tile = is_descending ? tiles.end - 1 : tiles.first;
    next.segment = tiles.segment;
  }
  /// Work tiles of head groups say how their mask is walked.
  __device__ __forceinline__ void begin_steps() {
    const schedule::Walk& walk = state.mask_info.walk;
    is_descending = walk.descending || (work().flags & schedule::kWorkTileDescending) != 0;
    heads_innermost = walk.heads_innermost || (work().flags & schedule::kWorkTileHeadsInside) != 0;
    next = {work().num_steps, work().head_begin};
    enter_first_run();
    find_rows();
  }
  __device__ __forceinline__ void enter_first_run() {
    next.run = is_descending ? work().run_end - 1 : work().run_begin;
    enter_run();
  }
  __device__ __forceinline__ bool next_tile() {
    next.tile += is_descending ? -1 : 1;
    const RangeQueryTiles& tiles = params.run_tiles[next.run];
    if (tiles.first <= next.tile && next.tile < tiles.end) {
      if (params.deterministic && params.dq_order_segments[next.segment + 1].first_tile == next.tile) ++next.segment;
      return true;
    }
    next.run += is_descending ? -1 : 1;
    if (next.run < work().run_begin || next.run >= work().run_end) return false;
    enter_run();
    return true;
  }
  /// What the copies and the mask of a step need, loaded while other warps multiply.
  __device__ __forceinline__ void find_rows() {
    next.rows = params.q_tiles[next.tile];
    next.is_there = params.covered_queries ? __ldg(params.covered_queries + next.tile) : ~uint64_t{0};
    const int32_t num_rows = next.rows.row_end - next.rows.row_begin;
    if (num_rows < kStepQueries) next.is_there &= (uint64_t{1} << num_rows) - 1;
  }
  __device__ __forceinline__ void advance() {
    if (--next.left == 0) return;
    advance_tile();
    find_rows();
  }
  __device__ __forceinline__ void advance_tile() {
    if (!heads_innermost) {
      if (next_tile()) return;
      ++next.head;
      enter_first_run();
    } else if (++next.head == work().head_end) {
      next.head = work().head_begin;
      next_tile();
    }
  }

  __device__ __forceinline__ int64_t accum_tile(const StepCursor& at) const {
    return offset_of(at.head, params.num_q_tiles) + at.tile;
  }

  /// Returns the interval of queries that see key `in_tile`. Queries and key are offsets within their tiles.
  __device__ __forceinline__ RowInterval queries_of(const TileRange& run, const QueryTile& rows,
                                                    int32_t in_tile) const {
    const int32_t key = work().row_begin + in_tile;
    RowInterval seen;
    if (key >= work().row_end) return seen;
    if (run.interval_begin >= 0) {
      seen = params.intervals[run.interval_begin + in_tile];
    } else if (run.row_begin <= key && key < run.row_end) {
      seen = {max(run.slice_k_begin, key + run.min_diag), min(run.slice_k_end, key + run.max_diag + 1)};
    }
    return {seen.begin - rows.row_begin, min(seen.end, rows.row_end) - rows.row_begin};
  }

  /// Draws the ticket of the next work tile, one step ahead to hide the latency of the atomic addition. A CTA that drew
  /// earlier would hold a work tile that it cannot begin. Other CTAs would run out of work, or wait for its turn.
  __device__ __forceinline__ void draw_ticket() {
    if (threadIdx.x == 0) state.ticket = atomicAdd(params.ticket, 1) + static_cast<int32_t>(gridDim.x);
  }
  /// Called before the last step. Head splits draw their places here, unless the call is deterministic (join_pieces).
  /// The last one to draw sums all. It never waits long: the others have at most their last step left.
  __device__ __forceinline__ void begin_last_step() {
    draw_ticket();
    if (threadIdx.x == 0 && work().num_head_splits > 1 && !params.deterministic) {
      state.place = atomicAdd(params.split_semaphore + work().accum_tile, kPieceArrived) / kPieceArrived;
    }
  }
};

/// Calls run() for each work tile of the CTA of `walk`, whose state is set then; it calls begin_last_step() if there
/// are steps. All threads.
template <typename Run>
__device__ __forceinline__ void run_work_tiles(StepWalk& walk, const Run& run) {
  const Params& params = walk.params;
  WorkState& state = walk.state;
  if (threadIdx.x == 0) {
    state.mask_info =
        params.mask_info != nullptr ? *params.mask_info : BackwardMaskInfo{params.num_work_tiles, params.walk, true};
    state.arrived.bits = 0;
  }
  __syncthreads();
  int32_t ticket = static_cast<int32_t>(blockIdx.x);
  while (ticket < state.mask_info.num_work_tiles) {
    __syncthreads();  // the work tile before has ended
    if (threadIdx.x < sizeof(WorkTile) / 16) {
      reinterpret_cast<uint4*>(&state.tile)[threadIdx.x] =
          reinterpret_cast<const uint4*>(params.work_tiles + ticket)[threadIdx.x];
    }
    __syncthreads();
    if (state.tile.num_steps == 0) {
      walk.draw_ticket();
      __syncthreads();
    }
    run();
    ticket = state.ticket;
  }
}

}  // namespace tangram::sm80::backward
