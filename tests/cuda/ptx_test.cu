// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Each PTX wrapper against a plain computation: TMA loads, stores and additions of swizzled tiles, wgmma with every
// operand kind that the kernels use, stmatrix, barrier reduction. Inputs are small integers, so that every result is
// exact.

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tensor_map.hpp"

namespace tangram::cuda {
namespace {

constexpr int kDepth = 64;  // of the matrix products: four k16 steps

struct Map {
  CUtensorMap map;
};

/// D[64, kN] = A[64, 64] * B, B either [kN, 64] (K-major) or [64, kN] (MN-major), A from shared memory or registers.
template <int kN, bool kTransB, bool kFromRegisters>
__global__ void product_kernel(const __grid_constant__ Map a_map, const __grid_constant__ Map b_map,
                               const __nv_bfloat16* a_global, float* d_global) {
  __shared__ alignas(1024) unsigned char a[64 * 128];
  __shared__ alignas(1024) unsigned char b[kN * 128];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1);
    ptx::fence_barrier_init();
    ptx::mbarrier_arrive_expect_tx(&full, sizeof(a) + sizeof(b));
    ptx::tma_load_4d(a, &a_map, &full, 0, 0, 0, 0);
    ptx::tma_load_4d(b, &b_map, &full, 0, 0, 0, 0);
  }
  __syncthreads();
  ptx::mbarrier_wait(&full, 0);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  float d[kN / 2];
  uint32_t fragments[kDepth / 16][4];
  for (int k = 0; k < kDepth / 16; ++k) {
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat16* pair = a_global + (row + i % 2 * 8) * kDepth + k * 16 + i / 2 * 8 + column;
      fragments[k][i] = *reinterpret_cast<const uint32_t*>(pair);
    }
  }
  const uint64_t a_descriptor = ptx::wgmma_descriptor(ptx::smem_address(a), 16, 1024);
  const uint64_t b_descriptor = ptx::wgmma_descriptor(ptx::smem_address(b), kTransB ? kDepth * 128 : 16, 1024);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    const uint64_t b_step = ptx::wgmma_advance(b_descriptor, k * (kTransB ? 2048 : 32));
    if constexpr (kFromRegisters) {
      ptx::wgmma_rs<__nv_bfloat16, kN, kTransB>(d, fragments[k], b_step, k > 0);
    } else {
      ptx::wgmma_ss<__nv_bfloat16, kN, 0, kTransB>(d, ptx::wgmma_advance(a_descriptor, k * 32), b_step, k > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(d);
  for (int i = 0; i < kN / 2; ++i) {
    d_global[(row + i / 2 % 2 * 8) * kN + i / 4 * 8 + column + i % 2] = d[i];
  }
}

std::vector<__nv_bfloat16> random_integers(size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<__nv_bfloat16> values(count);
  for (auto& value : values) value = __float2bfloat16(static_cast<float>(static_cast<int>(rng() % 9) - 4));
  return values;
}

ConstTensorView matrix(const DeviceBuffer& buffer, int64_t rows, int columns) {
  return {buffer.as<void>(), DType::kBFloat16, rows, 1, columns, columns, columns};
}

template <int kN, bool kTransB, bool kFromRegisters>
void expect_product() {
  const auto a = random_integers(64 * kDepth, 1), b = random_integers(kN * kDepth, 2);
  const auto a_device = DeviceBuffer::copy_of(a.data(), a.size() * 2),
             b_device = DeviceBuffer::copy_of(b.data(), b.size() * 2);
  const DeviceBuffer d_device(64 * kN * sizeof(float));
  const Map a_map{make_token_map(matrix(a_device, 64, kDepth), {64, 1, 1}, false)};
  const Map b_map{kTransB ? make_token_map(matrix(b_device, kDepth, kN), {kDepth, 1, kN / 64}, false)
                          : make_token_map(matrix(b_device, kN, kDepth), {kN, 1, 1}, false)};
  product_kernel<kN, kTransB, kFromRegisters>
      <<<1, 128>>>(a_map, b_map, a_device.as<__nv_bfloat16>(), d_device.as<float>());
  check(cudaGetLastError(), "product_kernel");
  std::vector<float> d(64 * kN);
  check(cudaMemcpy(d.data(), d_device.as<void>(), d_device.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < kN; ++j) {
      float expected = 0;
      for (int k = 0; k < kDepth; ++k) {
        expected += __bfloat162float(a[static_cast<size_t>(i * kDepth + k)]) *
                    __bfloat162float(b[static_cast<size_t>(kTransB ? k * kN + j : j * kDepth + k)]);
      }
      ASSERT_EQ(d[static_cast<size_t>(i * kN + j)], expected) << "row " << i << " column " << j;
    }
  }
}

TEST(Wgmma, BothInSharedMemory) {
  expect_product<64, false, false>();
  expect_product<96, false, false>();
  expect_product<128, false, false>();
}
TEST(Wgmma, BothInSharedMemoryTransposedB) {
  expect_product<64, true, false>();
  expect_product<128, true, false>();
}
TEST(Wgmma, FirstInRegistersTransposedB) {
  expect_product<64, true, true>();
  expect_product<128, true, true>();
}

__global__ void copy_kernel(const __grid_constant__ Map from, const __grid_constant__ Map to, bool twice) {
  __shared__ alignas(1024) unsigned char tile[64 * 256];
  __shared__ uint64_t full;
  if (threadIdx.x != 0) return;
  ptx::mbarrier_init(&full, 1);
  ptx::fence_barrier_init();
  ptx::mbarrier_arrive_expect_tx(&full, sizeof(tile));
  ptx::tma_load_4d(tile, &from, &full, 0, 32, 0, 0);  // the last 32 of its 64 rows lie past the end: zeros
  ptx::mbarrier_wait(&full, 0);
  ptx::tma_store_4d(&to, tile, 0, 0, 0, 0);
  ptx::tma_store_commit();
  ptx::tma_store_wait<0>();
  if (twice) ptx::tma_reduce_add_4d(&to, tile, 0, 0, 0, 0);
  ptx::tma_store_commit();
  ptx::tma_store_wait<0>();
}

TEST(Tma, LoadsStoresAndAddsSwizzledTilesAndFillsWithZeros) {
  for (const bool twice : {false, true}) {
    const auto values = random_integers(64 * 128, 3);
    const auto from = DeviceBuffer::copy_of(values.data(), values.size() * 2),
               to = DeviceBuffer::copy_of(values.data(), values.size() * 2);
    copy_kernel<<<1, 32>>>(Map{make_token_map(matrix(from, 64, 128), {64, 1, 2}, false)},
                           Map{make_token_map(matrix(to, 64, 128), {64, 1, 2}, false)}, twice);
    check(cudaGetLastError(), "copy_kernel");
    std::vector<__nv_bfloat16> out(values.size());
    check(cudaMemcpy(out.data(), to.as<void>(), to.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (size_t i = 0; i < out.size(); ++i) {
      const float expected = i < 32 * 128 ? __bfloat162float(values[i + 32 * 128]) * (twice ? 2 : 1) : 0.0f;
      ASSERT_EQ(__bfloat162float(out[i]), expected) << i;
    }
  }
}

__global__ void warp_kernel(uint16_t* matrices, int* any, int voter) {
  __shared__ alignas(16) uint16_t rows[2][32][8];
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    // Word m of a lane holds elements (lane / 4, 2 * (lane % 4)) and the next one of matrix m, numbered through.
    uint32_t words[4];
    for (int m = 0; m < 4; ++m) {
      const uint32_t first = static_cast<uint32_t>(m * 64 + lane / 4 * 8 + lane % 4 * 2);
      words[m] = first | (first + 1) << 16;
    }
    ptx::store_matrix_x4(rows[0][lane], words[0], words[1], words[2], words[3]);
    ptx::store_matrix_x4_transposed(rows[1][lane], words[0], words[1], words[2], words[3]);
    __syncwarp();
    for (int i = 0; i < 16; ++i) matrices[i * 32 + lane] = (&rows[0][0][0])[i * 32 + lane];
  }
  const bool result = ptx::named_barrier_any(3, 128, static_cast<int>(threadIdx.x) == voter);
  any[threadIdx.x] = result;
}

TEST(Warp, StoresMatricesAndAgreesOnAPredicate) {
  for (const int voter : {-1, 0, 77, 127}) {
    const DeviceBuffer matrices(2 * 256 * 2), any(128 * sizeof(int));
    warp_kernel<<<1, 128>>>(matrices.as<uint16_t>(), any.as<int>(), voter);
    check(cudaGetLastError(), "warp_kernel");
    std::vector<uint16_t> stored(512);
    std::vector<int> votes(128);
    check(cudaMemcpy(stored.data(), matrices.as<void>(), matrices.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    check(cudaMemcpy(votes.data(), any.as<void>(), any.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int m = 0; m < 4; ++m) {
      for (int r = 0; r < 8; ++r) {
        for (int c = 0; c < 8; ++c) {
          ASSERT_EQ(stored[static_cast<size_t>(m * 64 + r * 8 + c)], m * 64 + r * 8 + c);
          ASSERT_EQ(stored[static_cast<size_t>(256 + m * 64 + r * 8 + c)], m * 64 + c * 8 + r);
        }
      }
    }
    for (const int vote : votes) ASSERT_EQ(vote, voter >= 0);
  }
}

}  // namespace
}  // namespace tangram::cuda
