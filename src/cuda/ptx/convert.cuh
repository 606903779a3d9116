// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Pairs of 16-bit elements, and values that the compiler is to forget about.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tangram::ptx {

/// Two floats, rounded to nearest even, in one register; `low` in its lower half. Element: __nv_bfloat16 or __half.
template <typename Element>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t packed;
  if constexpr (__is_same(Element, __nv_bfloat16)) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    static_assert(__is_same(Element, __half));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

/// The reverse, exactly.
template <typename Element>
__device__ __forceinline__ float2 unpack_pair(uint32_t packed) {
  if constexpr (__is_same(Element, __nv_bfloat16)) {
    return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(packed));
  }
}

/// Hides from the compiler what it knows of the value, which it computes no sooner and keeps nothing derived from.
__device__ __forceinline__ void make_opaque(uint32_t& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void make_opaque(float& value) { asm volatile("" : "+f"(value)); }

/// threadIdx.x, read where this stands.
__device__ __forceinline__ uint32_t read_thread_index() {
  uint32_t value;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
  return value;
}

}  // namespace tangram::ptx
