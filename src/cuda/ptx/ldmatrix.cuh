// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Loads of 8x8 matrices of 16-bit elements from shared memory, as operands of mma. Compute capability 7.5 and later.
// PTX ISA, "Warp-level matrix load instruction: ldmatrix".
#pragma once

#include <cstdint>

namespace tangram::ptx {

/// Loads four matrices; lane 8i+r gives the shared-window address (smem_address) of row r of matrix i, aligned to 16
/// bytes. Lane 4r+c gets elements 2c and 2c+1 of row r of each.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&matrices)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row)
               : "memory");
}

/// Like load_matrix_x4, with each matrix transposed: lane 4c+r gets elements c of rows 2r and 2r+1.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&matrices)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row)
               : "memory");
}

}  // namespace tangram::ptx
