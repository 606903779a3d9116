// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// A warp for each list of token indices: how far it is to be walked, or that it is refused. Keys are marked in a bitmap
// in shared memory, window by window of the keys, so that one that is named twice finds its mark.
#pragma once

#include <cstdint>

#include "attn/sm90/tokens/params.hpp"
#include "cuda/ptx/memory.cuh"

namespace tangram::sm90::tokens {

inline constexpr int kCheckWarps = 4;

struct ListCheck {
  const CheckParams& params;
  uint32_t* bitmap;  // of a window of keys, clear but while a list is looked at
  const int lane;
  int32_t wrong_key = 0;
  bool repeats = false, outside = false;

  /// Calls visit(place, key) for this lane's entries that are not -1.
  template <typename Visit>
  __device__ __forceinline__ void visit_entries(const int32_t* list, const Visit& visit) {
    const auto topk = static_cast<int32_t>(params.topk);
#pragma unroll 4
    for (int32_t n = lane; n < topk; n += 32) {
      const int32_t key = __ldg(list + n);
      if (key != -1) visit(n, key);
    }
  }

  /// The entries to walk of this lane, 0 if it has none.
  __device__ __forceinline__ int32_t look(const int32_t* list) {
    int32_t end = 0;
    for (int64_t begin = 0; begin == 0 || begin < params.seqlen_k; begin += params.window) {
      const int64_t window_end = min(begin + params.window, params.seqlen_k);
      visit_entries(list, [&](int32_t n, int32_t key) {
        end = n + 1;
        if (key < 0 || key >= params.seqlen_k) {
          outside = true;
          wrong_key = key;
        } else if (key >= begin && key < window_end) {
          const auto bit = static_cast<uint32_t>(key - begin);
          if (atomicOr(bitmap + bit / 32, 1u << bit % 32) >> bit % 32 & 1) {
            repeats = true;
            if (!outside) wrong_key = key;
          }
        }
      });
      __syncwarp();
      visit_entries(list, [&](int32_t, int32_t key) {
        if (key >= begin && key < window_end) bitmap[(key - begin) / 32] = 0;
      });
      __syncwarp();
    }
    return end;
  }

  /// Counts a list that is refused. Stores of several threads to the host may arrive in any order. A thread that finds
  /// that others have counted since stores again, so that the last store to arrive is the largest.
  __device__ __forceinline__ void tell() {
    atomicAdd(params.num_refused, 1);
    const volatile int32_t& now = *params.num_refused;
    int32_t told;
    do {
      told = now;
      *static_cast<volatile int32_t*>(&params.control_block->count) = told;
      __threadfence_system();
    } while (now != told);
  }

  __device__ __forceinline__ void run(int64_t place) {
    const int32_t row = static_cast<int32_t>(place / params.num_heads_kv);
    const int32_t head = static_cast<int32_t>(place - int64_t{row} * params.num_heads_kv);
    outside = repeats = false;
    int32_t end = look(params.indices + place * params.topk);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) end = max(end, __shfl_xor_sync(0xffffffff, end, lanes));
    const uint32_t wrong = __ballot_sync(0xffffffff, outside || repeats);
    if (wrong != 0) {
      end = 0;
      // One lane reports: the last lane with something to report.
      if ((wrong >> lane) == 1) {
        *reinterpret_cast<int4*>(&params.control_block->last) = {row, head, wrong_key, outside ? 0 : 1};
        tell();
      }
      __syncwarp();
    }
    if (lane == 0) params.counts[int64_t{head} * params.seqlen_q + row] = end;
  }
};

__global__ void __launch_bounds__(kCheckWarps * 32) check_kernel(const __grid_constant__ CheckParams params) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t* bitmap = static_cast<uint32_t*>(ptx::dynamic_shared_memory()) + warp * (params.window / 32);
  for (int32_t i = lane; i < params.window / 32; i += 32) bitmap[i] = 0;
  __syncwarp();
  ListCheck check{params, bitmap, lane};
  const int64_t lists = int64_t{params.seqlen_q} * params.num_heads_kv;
  for (int64_t place = int64_t{blockIdx.x} * kCheckWarps + warp; place < lists;
       place += int64_t{gridDim.x} * kCheckWarps) {
    check.run(place);
  }
}

}  // namespace tangram::sm90::tokens
