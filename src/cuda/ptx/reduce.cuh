// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Additions to global memory that return nothing. PTX ISA, "Parallel Synchronization and Communication Instructions:
// red". Four values at once need compute capability 9.0 (memory.cuh).
#pragma once

namespace tangram::ptx {

/// Adds to global memory; atomic, in no order.
__device__ __forceinline__ void reduce_add_f32(float* address, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}

}  // namespace tangram::ptx
