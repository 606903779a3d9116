// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The producer warp of the backward kernel: draws items, walks query heads and runs of queries, issues TMA loads.
#pragma once

#include "attn/sm90/backward/traits.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace tangram::sm90::backward {

template <typename Traits>
struct Producer {
  const Params& params;
  Smem<Traits>& smem;
  RingPosition<Traits::kStages> ring;
  RingPosition<Traits::kItemSlots> slot;
  int32_t parity = 0;  // of the items with steps so far
  bool keys_missing = params.arrivals.pending != 0;

  /// K and V of an item, once the consumers have left those of the item before.
  __device__ __forceinline__ void load_keys(const Item& item) {
    ptx::mbarrier_wait(&smem.kv_empty, (item.flags & kItemOddPhase ? 1 : 0) ^ 1);
    if (keys_missing) keys_missing = await_keys(params.arrivals, smem.arrived, item.row_begin, item.row_end);
    ptx::mbarrier_arrive_expect_tx(&smem.k_full, Traits::kBytesK);
    ptx::tma_load_4d(smem.k, &params.k_map, &smem.k_full, 0, item.row_begin, 0, item.kv_head);
    ptx::mbarrier_arrive_expect_tx(&smem.v_full, Traits::kBytesK);
    ptx::tma_load_4d(smem.v, &params.v_map, &smem.v_full, 0, item.row_begin, 0, item.kv_head);
  }

  /// A step without loads: an item that no query sees, or the end.
  __device__ __forceinline__ void push_empty_step(int32_t flags) {
    ptx::mbarrier_wait(&smem.step_empty[ring.stage], ring.phase ^ 1);
    smem.step[ring.stage].flags = flags;
    smem.step[ring.stage].item_slot = slot.stage;
    ptx::mbarrier_arrive(&smem.q_full[ring.stage]);
    ring.advance();
  }

  /// One step: Q, then dout with its row statistics. The loads come before the message and before the arrivals that
  /// announce them, since the consumers have waited for this stage long enough.
  __device__ __forceinline__ void push_step(const Item& item, const TileRun& run, int32_t head, int32_t tile) {
    const int32_t dq_slab = head * params.num_q_tiles + tile;
    ptx::mbarrier_wait(&smem.step_empty[ring.stage], ring.phase ^ 1);
    ptx::tma_load_4d(smem.q[ring.stage], &params.q_map, &smem.q_full[ring.stage], 0, tile * kBlockM, 0, head);
    ptx::tma_load_4d(smem.dout[ring.stage], &params.dout_map, &smem.dout_full[ring.stage], 0, tile * kBlockM, 0, head);
    ptx::bulk_load(smem.stats[ring.stage], params.stats + int64_t{dq_slab} * (kBlockM * 2), Traits::kStatsBytes,
                   &smem.dout_full[ring.stage]);
    StepMessage& message = smem.step[ring.stage];
    message.item_slot = slot.stage;
    message.q0 = tile * kBlockM;
    message.dq_slab = dq_slab;
    const bool all = run.full_begin <= tile * kBlockM && (tile + 1) * kBlockM <= run.full_end &&
                     item.row_end - item.row_begin == kBlockN;
    message.flags = all ? 0 : kStepMasked;
    if constexpr (Traits::kDeterministic) message.turn = params.orders[run.reserved + tile - run.k_begin / kBlockM];
    if (!all) {
      message.row_begin = run.row_begin;
      message.row_end = run.row_end;
      message.slice_q_begin = run.slice_k_begin;
      message.slice_q_end = run.slice_k_end;
      message.min_diag = run.min_diag;
      message.max_diag = run.max_diag;
      message.interval_begin = run.interval_begin;
    }
    if (params.covered_queries) {
      const uint64_t covered = params.covered_queries[tile];
      message.covered[0] = static_cast<uint32_t>(covered);
      message.covered[1] = static_cast<uint32_t>(covered >> 32);
      if (covered != ~uint64_t{0}) message.flags |= kStepZeroRows;
    }
    ptx::mbarrier_arrive_expect_tx(&smem.q_full[ring.stage], Traits::kBytesQ);
    ptx::mbarrier_arrive_expect_tx(&smem.dout_full[ring.stage], Traits::kBytesQ + Traits::kStatsBytes);
    ring.advance();
  }

  /// The item is the one in the current slot.
  __device__ __forceinline__ void push_item() {
    const Item& item = smem.item[slot.stage];
    if (item.num_steps == 0) {
      push_empty_step(0);
    } else {
      load_keys(item);
      // One pass per query head over the runs, nothing unrolled or kept: this thread has few registers.
#pragma unroll 1
      for (int32_t head = item.head_begin; head < item.head_end; ++head) {
#pragma unroll 1
        for (int32_t r = item.run_begin; r < item.run_end; ++r) {
          const TileRun& run = params.runs[r];
#pragma unroll 1
          for (int32_t tile = run.k_begin / kBlockM; tile * kBlockM < run.k_end; ++tile) {
            push_step(item, run, head, tile);
          }
        }
      }
    }
    slot.advance();
  }

  /// One thread. Tickets are dealt in the order of the items; the first one of a CTA is its index.
  __device__ __forceinline__ void run() {
    int32_t ticket = static_cast<int32_t>(blockIdx.x);
    while (ticket < params.num_items) {
#pragma unroll 1
      for (int i = 0; i < static_cast<int>(sizeof(Item) / 16); ++i) {
        reinterpret_cast<uint4*>(&smem.item[slot.stage])[i] = reinterpret_cast<const uint4*>(params.items + ticket)[i];
      }
      smem.item[slot.stage].flags |= parity;
      if (smem.item[slot.stage].num_steps != 0) parity ^= kItemOddPhase;
      push_item();
      // Not earlier: a ticket drawn while this item has long to go would wait for it. The loads in flight hide this.
      ticket = atomicAdd(params.ticket, 1) + static_cast<int32_t>(gridDim.x);
    }
    push_empty_step(kStepStop);
  }
};

}  // namespace tangram::sm90::backward
