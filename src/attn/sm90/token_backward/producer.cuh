// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The warpgroup that feeds the consumers: each of its warps gathers 32 of a step's rows of K and of V. One thread also
// draws work tiles, says what each step is and loads what a work tile brings.
#pragma once

#include "attn/sm90/token_backward/traits.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::sm90::token_backward {

/// Draws work tiles, writes a message for each step, and loads Q, dout and statistics. One thread.
template <typename Traits>
struct Planner {
  const Params& params;
  typename Traits::SmemType& smem;
  int32_t in_part = 0;           // the work tile
  int32_t first = 0;             // key of the next step
  uint32_t work_tile_count = 0;  // of work tiles that see keys
  ListHead head{};               // of the work tile

  __device__ Planner(const Params& params_in, typename Traits::SmemType& smem_in) : params(params_in), smem(smem_in) {}

  __device__ __forceinline__ void begin_work_tile(int32_t work_tile) {
    in_part = work_tile;
    first = 0;
    if (in_part >= params.num_work_tiles) return;
    const ListParams& lists = params.lists;
    if (Traits::kOrdered || lists.packing.tokens > 1) {  // has_lists; by a call the code of other calls would change
      head = lists.heads[in_part];
    } else {
      // Work tile of one query; a call with such work tiles has one part.
      const int32_t group = in_part / lists.seqlen_q, query = in_part - group * lists.seqlen_q;
      head = {lists.counts[group / lists.packing.parts * lists.seqlen_q + query], kAllBlocks};
    }
  }

  /// After the last step of a work tile. Not earlier: a ticket drawn while a work tile has many steps left would wait
  /// for it.
  __device__ __forceinline__ void draw_work_tile() {
    if (head.count > 0) ++work_tile_count;
    begin_work_tile(atomicAdd(params.ticket, 1) + static_cast<int32_t>(gridDim.x));
  }

  __device__ __forceinline__ void plan_step(uint32_t step) {
    const uint32_t stage = step % Traits::kStagesK;
    ptx::mbarrier_wait(&smem.k_empty[stage], step / Traits::kStagesK % 2 ^ 1);
    StepMessage& to = smem.step[stage];
    const ListParams& lists = params.lists;
    const bool stops = in_part >= params.num_work_tiles;
    const int32_t work_tile = lists.first_work_tile + in_part, group = work_tile / lists.work_tiles_per_group;
    const int32_t first_query = (work_tile - group * lists.work_tiles_per_group) * lists.packing.tokens;
    const int32_t kv_head = group / lists.packing.parts;
    to.count = stops ? 0 : head.count - first;
    to.first = first + (are_indices<Traits>(lists) ? (int64_t{first_query} * lists.num_heads_kv + kv_head) * lists.topk
                                                   : int64_t{in_part} * lists.capacity);
    to.work_tile = work_tile;
    to.kv_head = kv_head;
    to.first_head = group * lists.packing.heads;
    to.first_query = first_query;
    to.seen_blocks = head.seen_blocks;
    to.kind = stops ? kStepStop
                    : (work_tile_count % 2 != 0 ? kStepOddWorkTile : 0) | (first == 0 ? kStepFirst : 0) |
                          (first + kKeys >= head.count ? kStepLast : 0);
    first += kKeys;
    ptx::mbarrier_arrive(&smem.planned[stage]);
  }

  /// Queries that see nothing, and rows behind the last query, are loaded as zeros, from outside of the tensor.
  /// Otherwise their values would reach other rows as 0 * NaN.
  __device__ __forceinline__ void load_rows(unsigned char* to, const TensorMap* map, uint64_t* full,
                                            const StepMessage& message) {
    const Packing& packing = params.lists.packing;
#pragma unroll 1
    for (int32_t token = 0; token < packing.tokens; ++token) {
      const int32_t row = token * packing.rows_per_token;
      const bool seen = message.seen_blocks >> (row / kBlockRows) & 1;
      const int32_t query = seen ? message.first_query + token : params.lists.seqlen_q;
#pragma unroll
      for (int panel = 0; panel < Traits::kPanels; ++panel) {
        ptx::tma_load_4d(to + panel * Traits::kPanelBytesQ + row * kPanelRowBytes, map, full, 0, message.first_head,
                         query, panel);
      }
    }
  }
  __device__ __forceinline__ void load_work_tile(const StepMessage& message) {
    const auto bytes = static_cast<uint32_t>(params.lists.packing.tokens * params.lists.packing.heads *
                                             Traits::kPanels * kPanelRowBytes);
    ptx::mbarrier_wait(&smem.work_tile_empty, message.kind & kStepOddWorkTile ? 0 : 1);
    ptx::mbarrier_arrive_expect_tx(&smem.q_full, bytes + kStatsFloats * 4);
    load_rows(smem.q, &params.q_map, &smem.q_full, message);
    ptx::bulk_load(smem.stats, params.stats + int64_t{message.work_tile} * kStatsFloats, kStatsFloats * 4,
                   &smem.q_full);
    ptx::mbarrier_arrive_expect_tx(&smem.dout_full, bytes);
    load_rows(smem.dout, &params.dout_map, &smem.dout_full, message);
  }
};

/// A warp of the warpgroup.
template <typename Traits>
struct Producer {
  static constexpr int kWarpKeys = kKeys / kProducerWarps;
  static_assert(kWarpKeys == 32);  // a lane knows one

  const Params& params;
  typename Traits::SmemType& smem;
  const uint32_t warp;
  int32_t key = -1;      // of this lane's row
  uint32_t touched = 0;  // see read_key

  __device__ Producer(const Params& params_in, typename Traits::SmemType& smem_in)
      : params(params_in), smem(smem_in), warp(__shfl_sync(0xffffffff, threadIdx.x / 32, 0)) {}

  /// Reads the key of the step `ahead` keys after the message's. While the L2 cache is busy adding, reading a key takes
  /// as long as copying its row. So it overlaps the copy of the step before. Consumers read these words as well, and
  /// which rows see the keys, a while later: then the L1 cache has them.
  __device__ __forceinline__ void read_key(const StepMessage& message, int32_t ahead) {
    const int32_t at = ahead + static_cast<int32_t>(threadIdx.x);
    key = step_key<Traits>(params.lists, message, at);
    if (has_lists<Traits>(params.lists) && at < message.count) {
      touched = __ldg(params.lists.row_blocks + message.first + at);
    }
  }

  /// This warp's rows of a step into a tile, zeros where there is no key.
  template <bool kV>
  __device__ __forceinline__ void gather(const unsigned char* tile, const StepMessage& message) {
    constexpr uint32_t kLanes = Traits::kHeadDim / 8;  // that copy 16 bytes of a row each
    constexpr uint32_t kRowsAtOnce = 32 / kLanes;
    const uint32_t lane = threadIdx.x % 32, head_split = lane % kLanes;
    const int32_t stride = params.key_row_bytes[kV];
    const char* from =
        static_cast<const char*>(params.keys[kV]) + message.kv_head * params.key_head_bytes[kV] + head_split * 16;
    // Addresses for this lane's row of the first kRowsAtOnce. Chunk c of row r lies at chunk c ^ r % 8.
    const uint32_t to = ptx::smem_address(tile) + head_split / 8 * Traits::kPanelBytesK +
                        (warp * kWarpKeys + lane / kLanes) * kPanelRowBytes + (head_split % 8 ^ lane / kLanes) * 16;
#pragma unroll
    for (uint32_t row = 0; row < kWarpKeys; row += kRowsAtOnce) {
      const int32_t of_row = __shfl_sync(0xffffffff, key, static_cast<int>(row + lane / kLanes));
      const bool none = of_row < 0 || (of_row & (kV ? kNanInV : kNanInK)) != 0;
      const int32_t at = none ? 0 : of_row & ~(kNanInK | kNanInV);
      ptx::cp_async_16((to ^ row % 8 * 16) + row * kPanelRowBytes, from + int64_t{at} * stride, none);
    }
    ptx::cp_async_commit();
  }
  /// Makes the rows that this warp has gathered visible to the matmuls of the consumers.
  __device__ __forceinline__ void arrive_gathered(uint64_t* full) {
    ptx::cp_async_wait<0>();
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(full);
  }

  __device__ __forceinline__ void run() {
    const bool plans = threadIdx.x == 0;
    Planner<Traits> planner(params, smem);
    if (plans) planner.begin_work_tile(static_cast<int32_t>(blockIdx.x));
    for (uint32_t step = 0;; ++step) {
      const uint32_t stage = step % Traits::kStagesK;
      if (plans) planner.plan_step(step);
      __syncwarp();
      ptx::mbarrier_wait(&smem.planned[stage], step / Traits::kStagesK % 2);
      const StepMessage& message = smem.step[stage];
      const int32_t kind = message.kind, count = message.count;
      if (kind & kStepFirst) read_key(message, 0);
      if (count > 0) {
        gather<false>(smem.k[stage], message);
        if (plans && kind & kStepFirst) planner.load_work_tile(message);
        __syncwarp();
      }
      arrive_gathered(&smem.k_full[stage]);
      if (kind & kStepStop) break;
      ptx::mbarrier_wait(&smem.v_empty, step % 2 ^ 1);
      if (count > 0) gather<true>(smem.v, message);
      if (!(kind & kStepLast)) read_key(message, kKeys);
      if (plans && kind & kStepLast) planner.draw_work_tile();
      __syncwarp();
      arrive_gathered(&smem.v_full);
      ptx::make_opaque(touched);
    }
  }
};

}  // namespace tangram::sm90::token_backward
