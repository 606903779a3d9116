// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Makes the lists of work tiles of several queries from token indices. A list has each key that any of the queries sees
// once, in ascending order, with the rows that see it. A CTA marks keys in a map in shared memory, range by range, and
// lists what is marked.
#pragma once

#include "attn/sm90/token_backward/traits.cuh"
#include "cuda/ptx/memory.cuh"

namespace tangram::sm90::token_backward {

inline constexpr int kListThreads = 512;
inline constexpr int kListWarps = kListThreads / 32;
inline constexpr int kMapKeys = 32768;   // of a range
inline constexpr int kKeysOfThread = 8;  // that are looked at together
inline constexpr int kKeysOfCta = kListThreads * kKeysOfThread;
static_assert(kMapKeys % kKeysOfCta == 0 && kRowBlocks == 16 && kKeysOfThread == 8);

struct alignas(16) ListSmem {
  uint32_t map[kMapKeys / 2];  ///< row blocks of two keys each
  int32_t warp_counts[2][kListWarps];
  uint32_t seen;  ///< ListHead::seen_blocks
};

struct ListMaker {
  const ListParams& params;
  ListSmem& smem;
  const int64_t to;  // where the work tile's list begins
  const int32_t kv_head, first_query;
  int32_t count = 0;  // so far; the same in all threads
  uint32_t turn = 0;  // of warp_counts

  __device__ __forceinline__ ListMaker(const ListParams& params_in, ListSmem& smem_in, int32_t in_part)
      : params(params_in),
        smem(smem_in),
        to(int64_t{in_part} * params_in.capacity),
        kv_head((params_in.first_work_tile + in_part) / params_in.work_tiles_per_group / params_in.packing.parts),
        first_query((params_in.first_work_tile + in_part) % params_in.work_tiles_per_group * params_in.packing.tokens) {
  }

  /// Marks what queries see of the range of keys from `begin` on; a warp 32 indices of a query at a time.
  __device__ __forceinline__ void mark(int32_t begin) {
    const auto warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t blocks_per_token = params.packing.rows_per_token / kBlockRows;
    const int32_t tokens = min(params.packing.tokens, params.seqlen_q - first_query);
    for (int32_t token = 0; token < tokens; ++token) {
      const int32_t query = first_query + token;
      const int32_t walked = __ldg(params.counts + int64_t{kv_head} * params.seqlen_q + query);
      const int32_t* indices = params.indices + (int64_t{query} * params.num_heads_kv + kv_head) * params.topk;
      const uint32_t blocks = ((1u << blocks_per_token) - 1) << (token * blocks_per_token);
      for (int32_t at = warp * 32 + lane; at < walked; at += kListThreads) {
        const auto in_map = static_cast<uint32_t>(__ldg(indices + at) - begin);  // of -1 never in the map
        if (in_map < kMapKeys) atomicOr(&smem.map[in_map / 2], blocks << (in_map % 2 * 16));
      }
    }
  }

  /// Where this thread's `own` entries go among the entries of all threads; counts them.
  __device__ __forceinline__ int32_t place(int32_t own) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    int32_t upto = own;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int32_t before = __shfl_sync(0xffffffff, upto, lane >= lanes ? lane - lanes : lane);
      if (lane >= lanes) upto += before;
    }
    int32_t* counts = smem.warp_counts[turn++ % 2];  // those of the turn before may still be read
    if (lane == 31) counts[warp] = upto;
    __syncthreads();
    int32_t first = count + upto - own;
#pragma unroll
    for (int i = 0; i < kListWarps; ++i) {
      if (i < warp) first += counts[i];
      count += counts[i];
    }
    return first;
  }

  __device__ __forceinline__ void list_marked(int32_t begin) {
    const int32_t end = min(params.seqlen_k - begin, kMapKeys);
    uint32_t seen = 0;
    for (int32_t from = 0; from < end; from += kKeysOfCta) {
      const int32_t first = from + static_cast<int32_t>(threadIdx.x) * kKeysOfThread;
      const uint4 words = *reinterpret_cast<const uint4*>(&smem.map[first / 2]);
      const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
      int32_t own = 0;
#pragma unroll
      for (const uint32_t pair : pairs) {
        own += ((pair & kAllBlocks) != 0 ? 1 : 0) + (pair >> 16 != 0 ? 1 : 0);
        seen |= pair | pair >> 16;
      }
      const int32_t bytes = (params.seqlen_k + 7) / 8;
      const uint8_t* nans = params.nans + int64_t{kv_head} * bytes + (begin + first) / kKeysOfThread;
      const uint32_t in_k = own == 0 ? 0 : nans[0], in_v = own == 0 ? 0 : nans[int64_t{params.num_heads_kv} * bytes];
      int64_t at = to + place(own);
#pragma unroll
      for (int i = 0; i < kKeysOfThread; ++i) {
        const uint32_t blocks = pairs[i / 2] >> (i % 2 * 16) & kAllBlocks;
        if (blocks == 0) continue;
        params.keys[at] =
            begin + first + i + ((in_k >> i & 1) != 0 ? kNanInK : 0) + ((in_v >> i & 1) != 0 ? kNanInV : 0);
        params.row_blocks[at++] = static_cast<uint16_t>(blocks);
      }
    }
    seen &= kAllBlocks;
    if (seen != 0) atomicOr(&smem.seen, seen);
  }

  __device__ __forceinline__ void run(ListHead& head) {
    if (threadIdx.x == 0) smem.seen = 0;
    for (int32_t begin = 0; begin < params.seqlen_k; begin += kMapKeys) {
      for (int i = static_cast<int>(threadIdx.x); i < kMapKeys / 8; i += kListThreads) {
        reinterpret_cast<uint4*>(smem.map)[i] = uint4{};
      }
      __syncthreads();
      mark(begin);
      __syncthreads();
      list_marked(begin);
      __syncthreads();
    }
    if (threadIdx.x == 0) head = {count, smem.seen};
  }
};

/// A CTA for each work tile of the part.
__global__ void __launch_bounds__(kListThreads) list_kernel(const __grid_constant__ ListParams params) {
  const auto in_part = static_cast<int32_t>(blockIdx.x);
  ListMaker maker(params, *static_cast<ListSmem*>(ptx::dynamic_shared_memory()), in_part);
  maker.run(params.heads[in_part]);
}

}  // namespace tangram::sm90::token_backward
