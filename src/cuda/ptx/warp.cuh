// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Warp- and warpgroup-level pieces: register reallocation, named barriers, election, matrix stores, dependent launch.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace tangram::ptx {

/// Raises this warp's registers to kRegisters (a multiple of 8, 24..256); blocks until they are free. All warps of the
/// warpgroup must execute it.
template <int kRegisters>
__device__ __forceinline__ void register_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Gives registers above kRegisters (a multiple of 8, 24..256) back. All warps of the warpgroup must execute it.
template <int kRegisters>
__device__ __forceinline__ void register_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// True in exactly one lane of a converged warp.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

/// Waits on named barrier `barrier` (1..15) until `num_threads` threads have arrived, this warp's included.
__device__ __forceinline__ void named_barrier_sync(uint32_t barrier, uint32_t num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

/// Arrives on named barrier `barrier` without waiting.
__device__ __forceinline__ void named_barrier_arrive(uint32_t barrier, uint32_t num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

/// Like named_barrier_sync; returns true in every thread when `predicate` holds in any of them.
__device__ __forceinline__ bool named_barrier_any(uint32_t barrier, uint32_t num_threads, bool predicate) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "barrier.cta.red.or.pred q, %1, %2, p;\n"
      "selp.b32 %0, 1, 0, q;\n"
      "}\n"
      : "=r"(any)
      : "r"(barrier), "r"(num_threads), "r"(static_cast<uint32_t>(predicate))
      : "memory");
  return any != 0;
}

/// Stores four 8x8 matrices of 16-bit elements; lane 8i+r gives the address of row r of matrix i.
__device__ __forceinline__ void store_matrix_x4(void* row, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address(row)), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

/// Like store_matrix_x4, with each matrix transposed.
__device__ __forceinline__ void store_matrix_x4_transposed(void* row, uint32_t m0, uint32_t m1, uint32_t m2,
                                                           uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address(row)),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

/// Waits until the grids that this one depends on (programmatic dependent launch) have completed and flushed.
__device__ __forceinline__ void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/// Lets dependent grids start; they still wait for this one's completion in grid_dependency_wait().
__device__ __forceinline__ void grid_dependency_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// 2^x, flushing denormals; relative error about 2^-22.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x), flushing denormals; absolute error about 2^-22 near 1, else relative. Minus infinity for 0.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x, flushing denormals; relative error about 2^-23.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// tanh(x), absolute error about 2^-11.
__device__ __forceinline__ float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tangram::ptx
