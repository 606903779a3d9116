// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Fragments of wgmma. A warp holds 16 rows, a thread two of them (lane / 4, and 8 further). The four lanes of a row, a
// quad, hold two neighbouring columns each of every 8. Accumulator 4 j + 2 r + e is column 8 j + 2 (lane % 4) + e of
// row r.
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"

namespace tangram::sm90 {

using ptx::pack_pair;

/// Rounds accumulators to the A operand of another product, for every 16 of its columns four words.
template <typename Element, int kGroups, int kCount>
__device__ __forceinline__ void pack_operand(uint32_t (&to)[kGroups][4], const float (&from)[kCount]) {
  static_assert(kCount <= kGroups * 8);
#pragma unroll
  for (int g = 0; g < kCount / 8; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[g][i] = pack_pair<Element>(from[8 * g + 2 * i], from[8 * g + 2 * i + 1]);
  }
}

}  // namespace tangram::sm90
