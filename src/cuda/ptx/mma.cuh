// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Matrix products of one warp, of operands in registers. Compute capability 8.0 and later.
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tangram::ptx {

/// d[0..3] += A B, A of 16 rows by 16, B of 16 by 8 columns, float32 sums. Lane 4r+c holds: of A rows r (a[0], a[2])
/// and r + 8 (a[1], a[3]), columns 2c and 2c+1 (a[0], a[1]) and 8 further. Of B rows 2c, 2c+1 (b0) and 8 further (b1)
/// of column r. Of d columns 2c and 2c+1 of row r, then of row r + 8. Element: __nv_bfloat16 or __half.
template <typename Element>
__device__ __forceinline__ void mma_m16n8k16(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (__is_same(Element, __nv_bfloat16)) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(__is_same(Element, __half));
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace tangram::ptx
