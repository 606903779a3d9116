// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Deterministic calls: the kernel behind the main one of each part. A warp owns a key of a K/V head and finds it in the
// lists of the part's work tiles. It adds what they have stored for the key, in the order of work tiles.
#pragma once

#include "attn/sm90/token_backward/traits.cuh"

namespace tangram::sm90::token_backward {

inline constexpr int kCollectThreads = 256;

/// Where a work tile's list, which is in ascending order, has the key: an index of ListParams::keys, or -1.
__device__ __forceinline__ int32_t find_entry(const ListParams& lists, int32_t in_part, int32_t key) {
  const int32_t first = in_part * lists.capacity, count = lists.heads[in_part].count;
  const auto key_at = [&](int32_t at) { return __ldg(lists.keys + first + at) & ~(kNanInK | kNanInV); };
  int32_t begin = 0, end = count;
  while (begin < end) {
    const int32_t middle = (begin + end) / 2;
    if (key_at(middle) < key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < count && key_at(begin) == key ? first + begin : -1;
}

template <int kHeadDim>
__global__ void __launch_bounds__(kCollectThreads) collect_kernel(const __grid_constant__ CollectParams params) {
  static_assert(kHeadDim == 128);  // 32 lanes of four columns
  const ListParams& lists = params.lists;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t place = int64_t{blockIdx.x} * (kCollectThreads / 32) + threadIdx.x / 32;
  if (place >= int64_t{lists.num_heads_kv} * lists.seqlen_k) return;
  const auto kv_head = static_cast<int32_t>(place / lists.seqlen_k);
  const auto key = static_cast<int32_t>(place - int64_t{kv_head} * lists.seqlen_k);
  const int32_t work_tiles = lists.packing.parts * lists.work_tiles_per_group;  // of a K/V head
  const int32_t begin = max(kv_head * work_tiles - lists.first_work_tile, 0);
  const int32_t end = min((kv_head + 1) * work_tiles - lists.first_work_tile, params.num_work_tiles);
  float4 sums[2] = {};
  bool any = false;
  for (int32_t first = begin; first < end; first += 32) {
    const int32_t mine = first + lane < end ? find_entry(lists, first + lane, key) : -1;
    uint32_t found = __ballot_sync(0xffffffff, mine >= 0);
    any = any || found != 0;
    while (found != 0) {
      const int32_t row = __shfl_sync(0xffffffff, mine, __ffs(static_cast<int>(found)) - 1);
      found &= found - 1;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 share = __ldcs(reinterpret_cast<const float4*>(params.shares[i] + int64_t{row} * kHeadDim) + lane);
        sums[i].x += share.x, sums[i].y += share.y, sums[i].z += share.z, sums[i].w += share.w;
      }
    }
  }
  if (!any) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float4& to = reinterpret_cast<float4*>(params.sums[i] + place * kHeadDim)[lane];
    const float4 before = to;
    to = {before.x + sums[i].x, before.y + sums[i].y, before.z + sums[i].z, before.w + sums[i].w};
  }
}

}  // namespace tangram::sm90::token_backward
