// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What feeds the consumers: a thread that draws items, says what each step is and loads what an item brings, a warp that
// gathers keys, a warp that gathers values. Few registers each.
#pragma once

#include "attn/sm90/token_backward/traits.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90::token_backward {

/// Draws items, writes a message for each step, and loads Q, dout and statistics. K of the steps that it does not say
/// meanwhile has no place before either.
template <typename Traits>
struct Planner {
  const Params& params;
  typename Traits::SmemType& smem;
  uint32_t step = 0;        // in all items
  uint32_t item_count = 0;  // of those that see keys

  __device__ __forceinline__ void push_step(int32_t in_part, const ListHead& head, int32_t first, int32_t kind) {
    const uint32_t stage = step % Traits::kStagesK;
    ptx::mbarrier_wait(&smem.k_empty[stage], step / Traits::kStagesK % 2 ^ 1);
    const ListParams& lists = params.lists;
    StepMessage& to = smem.step[stage];
    to.kind = kind;
    to.count = head.count - first;
    const int32_t item = lists.first_item + in_part, group = item / lists.items_per_group;
    const int32_t first_query = (item - group * lists.items_per_group) * lists.packing.tokens;
    const int32_t kv_head = group / lists.packing.parts;
    to.first = first + (lists.packing.tokens == 1
                            ? (int64_t{first_query} * lists.num_heads_kv + kv_head) * lists.topk
                            : int64_t{in_part} * lists.capacity);
    to.item = item;
    to.kv_head = kv_head;
    to.first_head = group * lists.packing.heads;
    to.first_query = first_query;
    to.seen_blocks = head.seen_blocks;
    ptx::mbarrier_arrive(&smem.planned[stage]);
    ++step;
  }

  /// Queries that see nothing, and those behind the last, are loaded as zeros, from outside of the tensor:
  /// what they hold would reach others as 0 * NaN.
  __device__ __forceinline__ void load_rows(unsigned char* to, const TensorMap* map, uint64_t* full,
                                            const StepMessage& message) {
    const Packing& packing = params.lists.packing;
    const int32_t head = message.first_head;
#pragma unroll 1
    for (int32_t token = 0; token < packing.tokens; ++token) {
      const int32_t row = token * packing.rows_per_token;
      const bool seen = message.seen_blocks >> (row / kBlockRows) & 1;
      const int32_t query = seen ? message.first_query + token : params.lists.seqlen_q;
#pragma unroll
      for (int panel = 0; panel < Traits::kPanels; ++panel) {
        ptx::tma_load_4d(to + panel * Traits::kPanelBytesQ + row * kPanelRowBytes, map, full, 0, head, query, panel);
      }
    }
  }
  __device__ __forceinline__ void load_item(const StepMessage& message) {
    const auto bytes = static_cast<uint32_t>(params.lists.packing.tokens * params.lists.packing.heads *
                                             Traits::kPanels * kPanelRowBytes);
    ptx::mbarrier_wait(&smem.item_empty, message.kind & kStepOddItem ? 0 : 1);
    ptx::mbarrier_arrive_expect_tx(&smem.q_full, bytes + kStatsFloats * 4);
    load_rows(smem.q, &params.q_map, &smem.q_full, message);
    ptx::bulk_load(smem.stats, params.stats + int64_t{message.item} * kStatsFloats, kStatsFloats * 4, &smem.q_full);
    ptx::mbarrier_arrive_expect_tx(&smem.dout_full, bytes);
    load_rows(smem.dout, &params.dout_map, &smem.dout_full, message);
  }

  __device__ __forceinline__ ListHead head_of(int32_t in_part) const {
    const ListParams& lists = params.lists;
    if (lists.packing.tokens > 1) return lists.heads[in_part];
    // Of one query; a call of such items has one part.
    const int32_t group = in_part / lists.seqlen_q, query = in_part - group * lists.seqlen_q;
    return {lists.counts[group / lists.packing.parts * lists.seqlen_q + query], kAllBlocks};
  }

  __device__ __forceinline__ void run() {
    int32_t in_part = static_cast<int32_t>(blockIdx.x);
    while (in_part < params.num_items) {
      const ListHead head = head_of(in_part);
      const int32_t odd = item_count % 2 != 0 ? kStepOddItem : 0;
      if (head.count == 0) push_step(in_part, head, 0, kStepFirst | kStepLast);
#pragma unroll 1
      for (int32_t first = 0; first < head.count; first += kKeys) {
        push_step(in_part, head, first,
                  odd | (first == 0 ? kStepFirst : 0) | (first + kKeys >= head.count ? kStepLast : 0));
        if (first == 0) load_item(smem.step[(step - 1) % Traits::kStagesK]);
      }
      if (head.count != 0) ++item_count;
      // Not earlier: a ticket drawn while this item has long to go would wait for it.
      in_part = atomicAdd(params.ticket, 1) + static_cast<int32_t>(gridDim.x);
    }
    push_step(0, ListHead{}, 0, kStepStop);
  }
};

/// Gathers K (kV = false) or V of each step. A whole warp, whose lanes know four keys each. A step's keys are read while
/// the one before is copied, since where the L2 cache is busy adding, reading takes as long as copying.
template <typename Traits, bool kV>
struct Loader {
  const Params& params;
  typename Traits::SmemType& smem;
  int32_t keys[kKeys / 32];
  uint32_t touched = 0;

  __device__ Loader(const Params& params_in, typename Traits::SmemType& smem_in) : params(params_in), smem(smem_in) {}

  /// Keys from `first` on, counted from those of a message. Consumers read these words as well, and which rows see the
  /// keys, a while later: then the L1 cache has them.
  __device__ __forceinline__ void read_keys(const StepMessage& message, int32_t first) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) keys[i] = step_key(params.lists, message, first + i * 32 + lane);
    const int32_t at = first + lane * (kKeys / 32);
    if (!kV && params.lists.packing.tokens > 1 && at < message.count) {
      touched = __ldg(params.lists.row_blocks + message.first + at);
    }
  }

  /// Rows of the step's keys into a tile, zeros where there is no key.
  __device__ __forceinline__ void gather(const unsigned char* tile, const StepMessage& message) {
    constexpr uint32_t kLanes = Traits::kHeadDim / 8;  // that copy 16 bytes of a row each
    constexpr uint32_t kRowsAtOnce = 32 / kLanes;
    const uint32_t lane = threadIdx.x % 32, piece = lane % kLanes;
    const int32_t stride = params.key_row_bytes[kV];
    const char* from =
        static_cast<const char*>(params.keys[kV]) + message.kv_head * params.key_head_bytes[kV] + piece * 16;
    // Of this lane's row of the first kRowsAtOnce. Chunk c of row r lies at chunk c ^ r % 8.
    uint32_t to = ptx::smem_address(tile) + piece / 8 * Traits::kPanelBytesK + lane / kLanes * kPanelRowBytes +
                  (piece % 8 ^ lane / kLanes) * 16;
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) {
      ptx::make_opaque(to);  // else addresses of all rows are made before the loop, and spilled
#pragma unroll 4             // more costs registers
      for (uint32_t row = 0; row < 32; row += kRowsAtOnce) {
        const int32_t key = __shfl_sync(0xffffffff, keys[i], static_cast<int>(row + lane / kLanes));
        ptx::cp_async_16((to ^ row % 8 * 16) + row * kPanelRowBytes, from + int64_t{max(key, 0)} * stride, key < 0);
      }
      to += 32 * kPanelRowBytes;
    }
    ptx::cp_async_commit();
  }
  /// What this warp has gathered is there for the matmuls of the consumers.
  __device__ __forceinline__ void arrive_gathered(uint64_t* full) {
    ptx::cp_async_wait<0>();
    ptx::fence_proxy_async();
    arrive(full);
  }
  __device__ __forceinline__ void arrive(uint64_t* barrier) {
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(barrier);
  }

  __device__ __forceinline__ void run() {
    for (uint32_t step = 0;; ++step) {
      const uint32_t stage = step % Traits::kStagesK;
      ptx::mbarrier_wait(&smem.planned[stage], step / Traits::kStagesK % 2);
      const StepMessage& message = smem.step[stage];
      const int32_t kind = message.kind, count = message.count;
      if (kV && kind & kStepStop) break;
      if (kind & kStepFirst) read_keys(message, 0);
      if constexpr (kV) ptx::mbarrier_wait(&smem.v_empty, step % 2 ^ 1);
      if (count > 0) gather(kV ? smem.v : smem.k[stage], message);
      if (!(kind & kStepLast)) read_keys(message, kKeys);
      arrive_gathered(kV ? &smem.v_full : &smem.k_full[stage]);
      if (kind & kStepStop) break;
      ptx::make_opaque(touched);
    }
  }
};

}  // namespace tangram::sm90::token_backward
