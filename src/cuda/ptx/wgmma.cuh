// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix multiply (wgmma): descriptors of operands in shared memory, ordering, and register fragments.
// PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/wgmma_shapes.cuh"

// Layout of operands here ("panels"): a tile of R rows and C columns of 16-bit elements is C / 64 panels, one after the
// other. A panel is R rows of 128 bytes, aligned to 1024 bytes. TMA writes it so with CU_TENSOR_MAP_SWIZZLE_128B:
// 16-byte chunk c of row r lies at chunk c ^ (r % 8). Eight rows (1024 bytes) are the repeating unit of the swizzle.
namespace tangram::ptx {

/// Descriptor of an operand with 128-byte swizzle. Byte offsets are multiples of 16 below 2^18.
/// K-major (contiguous along the reduction): `stride_bytes` between groups of 8 rows (1024), `leading_bytes` unused.
/// MN-major (contiguous along M or N): `leading_bytes` between panels of 64 columns, `stride_bytes` between groups of 8
/// rows of the reduction (1024).
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (uint64_t{stride_bytes >> 4} << 32) | (uint64_t{leading_bytes >> 4} << 16) |
         uint64_t{(address & 0x3ffff) >> 4};
}

/// Descriptor of a K-major operand without swizzle: groups of 8 rows by 16 bytes, 128 bytes each. `leading_bytes`:
/// between groups along the reduction; `stride_bytes`: between groups of rows.
__device__ __forceinline__ uint64_t wgmma_descriptor_plain(uint32_t address, uint32_t leading_bytes,
                                                           uint32_t stride_bytes) {
  return (uint64_t{stride_bytes >> 4} << 32) | (uint64_t{leading_bytes >> 4} << 16) |
         uint64_t{(address & 0x3ffff) >> 4};
}

/// A descriptor moved by `bytes` (a multiple of 16). Inside a 128-byte row it steps along K in a K-major operand (32
/// bytes for 16 elements). By multiples of 1024 bytes it steps by 8 rows.
__device__ __forceinline__ uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

/// Orders this warp's register accesses before following wgmma; needed before the first one and after any touch.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Closes a group of the wgmma issued so far.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most kPending groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving reads or writes of accumulators across this point (a wait, for example).
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

/// D (+)= A * B with both operands in shared memory; kTransA / kTransB: 1 when that operand is MN-major.
template <typename T, int kN, int kTransA = 0, int kTransB = 0>
__device__ __forceinline__ void wgmma_ss(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  WgmmaShape<T, kN>::template ss<kTransA, kTransB>(d, a, b, accumulate);
}

/// D (+)= A * B with A in registers: a[0..3] hold rows (lane / 4), +8, and columns 2 * (lane % 4), +8 as pairs. The
/// order is that of two neighbouring column groups of an accumulator.
template <typename T, int kN, int kTransB = 0>
__device__ __forceinline__ void wgmma_rs(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  WgmmaShape<T, kN>::template rs<kTransB>(d, a, b, accumulate);
}

}  // namespace tangram::ptx
