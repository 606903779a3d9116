// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Which query row and which head a row of a tile is. The query heads of a group share the tile: packed row r is query
// row r / pack of head r % pack. Pack is a power of two, a shift, unless Traits::kAnyGqaRatio. Then it is
// ForwardParams::packing, any other number, and the last rows of a tile may be unused.
#pragma once

#include <cstdint>

#include "attn/sm90/forward/params.hpp"

namespace tangram::sm90 {

/// Query heads of a tile, with Traits::kAnyGqaRatio.
__device__ __forceinline__ int32_t heads_of_tile(const ForwardParams& params) {
  return static_cast<int32_t>(params.packing & 0xffff);
}

/// The query row of a packed row, both counted in the tile.
template <typename Traits>
__device__ __forceinline__ int32_t query_row_of(const ForwardParams& params, int32_t packed_row) {
  if constexpr (Traits::kAnyGqaRatio) {
    return static_cast<int32_t>(static_cast<uint32_t>(packed_row) * (params.packing >> 16) >> kPackingShift);
  } else {
    return packed_row >> params.pack_log2;
  }
}

/// The first query head of a group.
template <typename Traits>
__device__ __forceinline__ int32_t first_head_of(const ForwardParams& params, int32_t group) {
  if constexpr (Traits::kAnyGqaRatio) return group * heads_of_tile(params);
  return group << params.pack_log2;
}

/// The query head of a packed row, which is of `query_row` of the tile, counted in its group.
template <typename Traits>
__device__ __forceinline__ int32_t head_in_group(const ForwardParams& params, int32_t packed_row, int32_t query_row) {
  if constexpr (Traits::kAnyGqaRatio) return packed_row - query_row * heads_of_tile(params);
  return packed_row & ((1 << params.pack_log2) - 1);
}

/// Used rows of a tile.
template <typename Traits>
__device__ __forceinline__ int32_t used_rows(const ForwardParams& params) {
  return query_row_of<Traits>(params, Traits::kBlockM) * heads_of_tile(params);
}

/// Zeroes the unused rows, which no load writes: a NaN there would cost a lazy rescaling at each step.
template <typename Traits, typename Smem>
__device__ __forceinline__ void clear_unused_rows(const ForwardParams& params, Smem& smem) {
  const int32_t first = used_rows<Traits>(params);
  for (int32_t stage = 0; stage < Traits::kStagesQ; ++stage) {
    for (int32_t panel = 0; panel < Traits::kPanelsQk; ++panel) {
      for (int32_t i = first * 8 + static_cast<int32_t>(threadIdx.x); i < Traits::kBlockM * 8; i += Traits::kThreads) {
        *reinterpret_cast<uint4*>(smem.q[stage] + panel * Traits::kPanelBytesQ + i * 16) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  ptx::fence_proxy_async();
}

}  // namespace tangram::sm90
