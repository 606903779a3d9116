// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Each PTX wrapper against a plain computation: TMA loads, stores and additions of swizzled tiles, wgmma with every
// operand kind that the kernels use, stmatrix, barrier reduction. Inputs are small integers, so that every result is
// exact.

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
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

/// Columns of B in shared memory: whole panels where it is MN-major, of which a product may take a part of the last.
template <int kN, bool kTransB>
constexpr int kDirectStore = kTransB ? (kN + 63) / 64 * 64 : kN;

/// D[64, kN] = A[64, 64] * B, B either [kN, 64] (K-major) or [64, kN] (MN-major), A from shared memory or registers.
/// MN-major columns of B begin with kFirst.
template <int kN, bool kTransB, bool kFromRegisters, int kFirst>
__global__ void product_kernel(const __grid_constant__ Map a_map, const __grid_constant__ Map b_map,
                               const __nv_bfloat16* a_global, float* d_global) {
  __shared__ alignas(1024) unsigned char a[64 * 128];
  __shared__ alignas(1024) unsigned char b[kDirectStore<kN, kTransB> * 128];
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
  const uint64_t b_descriptor =
      ptx::wgmma_descriptor(ptx::smem_address(b) + kFirst * 2, kTransB ? kDepth * 128 : 16, 1024);
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

template <int kN, bool kTransB, bool kFromRegisters, int kFirst = 0>
void expect_product() {
  static_assert(kFirst == 0 || (kTransB && kFirst + kN <= 64));
  constexpr int kColumns = kDirectStore<kN, kTransB>;
  const auto a = random_integers(64 * kDepth, 1), b = random_integers(kColumns * kDepth, 2);
  const auto a_device = DeviceBuffer::copy_of(a.data(), a.size() * 2),
             b_device = DeviceBuffer::copy_of(b.data(), b.size() * 2);
  const DeviceBuffer d_device(64 * kN * sizeof(float));
  const Map a_map{make_token_map(matrix(a_device, 64, kDepth), {64, 1, 1}, false)};
  const Map b_map{kTransB ? make_token_map(matrix(b_device, kDepth, kColumns), {kDepth, 1, kColumns / 64}, false)
                          : make_token_map(matrix(b_device, kN, kDepth), {kN, 1, 1}, false)};
  product_kernel<kN, kTransB, kFromRegisters, kFirst>
      <<<1, 128>>>(a_map, b_map, a_device.as<__nv_bfloat16>(), d_device.as<float>());
  check(cudaGetLastError(), "product_kernel");
  std::vector<float> d(64 * kN);
  check(cudaMemcpy(d.data(), d_device.as<void>(), d_device.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < kN; ++j) {
      float expected = 0;
      for (int k = 0; k < kDepth; ++k) {
        expected += __bfloat162float(a[static_cast<size_t>(i * kDepth + k)]) *
                    __bfloat162float(b[static_cast<size_t>(kTransB ? k * kColumns + kFirst + j : j * kDepth + k)]);
      }
      ASSERT_EQ(d[static_cast<size_t>(i * kN + j)], expected) << "row " << i << " column " << j;
    }
  }
}

TEST(Wgmma, BothInSharedMemory) {
  expect_product<64, false, false>();
  expect_product<80, false, false>();
  expect_product<96, false, false>();
  expect_product<128, false, false>();
}
TEST(Wgmma, BothInSharedMemoryTransposedB) {
  expect_product<16, true, false>();
  expect_product<16, true, false, 16>();
  expect_product<32, true, false>();
  expect_product<32, true, false, 32>();
  expect_product<64, true, false>();
  expect_product<128, true, false>();
}
TEST(Wgmma, FirstInRegistersTransposedB) {
  expect_product<32, true, true>();
  expect_product<64, true, true>();
  expect_product<96, true, true>();  // a panel and half of one
  expect_product<128, true, true>();
  expect_product<192, true, true>();
  expect_product<256, true, true>();
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

/// Tensor of 72 columns: the second panel of a tile has 8 of them, then zeros; only the 8 are written back.
__global__ void any_column_kernel(const __grid_constant__ Map from, const __grid_constant__ Map to) {
  __shared__ alignas(1024) unsigned char tile[64 * 128];
  __shared__ uint64_t full;
  if (threadIdx.x != 0) return;
  ptx::mbarrier_init(&full, 1);
  ptx::fence_barrier_init();
  ptx::mbarrier_arrive_expect_tx(&full, sizeof(tile));
  ptx::tma_load_4d(tile, &from, &full, 64, 0, 0, 0);
  ptx::mbarrier_wait(&full, 0);
  // A panel that is outside as a whole is zeros, too: over the rows from 32 on.
  ptx::mbarrier_arrive_expect_tx(&full, sizeof(tile) / 2);
  ptx::tma_load_4d(tile + sizeof(tile) / 2, &to, &full, 128, 0, 0, 0);
  ptx::mbarrier_wait(&full, 1);
  ptx::tma_store_4d(&from, tile, 64, 0, 0, 0);
  ptx::tma_store_4d(&from, tile, 128, 0, 0, 0);
  ptx::tma_store_commit();
  ptx::tma_store_wait<0>();
}

TEST(Tma, LeavesOutColumnsPastTheEnd) {
  const auto values = random_integers(64 * 128, 5);
  const auto memory = DeviceBuffer::copy_of(values.data(), values.size() * 2);
  ConstTensorView view = matrix(memory, 64, 72);
  view.row_stride = 128;  // 56 columns of others behind each row
  any_column_kernel<<<1, 32>>>(Map{make_token_map(view, {64, 1, kAnyColumn}, false)},
                               Map{make_token_map(view, {32, 1, kAnyColumn}, false)});
  check(cudaGetLastError(), "any_column_kernel");
  std::vector<__nv_bfloat16> out(values.size());
  check(cudaMemcpy(out.data(), memory.as<void>(), memory.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (size_t i = 0; i < out.size(); ++i) {
    const bool zeroed = i / 128 >= 32 && i % 128 >= 64 && i % 128 < 72;
    ASSERT_EQ(__bfloat162float(out[i]), zeroed ? 0.0f : __bfloat162float(values[i])) << i;
  }
}

/// Both CTAs of a cluster load half of the tile and multicast it to both.
__global__ void __cluster_dims__(2, 1, 1) multicast_kernel(const __grid_constant__ Map from, __nv_bfloat16* to) {
  __shared__ alignas(1024) unsigned char tile[64 * 128];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1);
    ptx::fence_barrier_init();
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  const int half = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(&full, sizeof(tile));
    ptx::tma_load_4d_multicast(tile + half * sizeof(tile) / 2, &from, &full, 0b11, 0, half * 32, 0, 0);
    ptx::mbarrier_wait(&full, 0);
  }
  __syncthreads();
  // Row r of a tile with 128-byte swizzle holds its 16-byte chunk c at chunk c ^ (r % 8).
  for (int i = static_cast<int>(threadIdx.x); i < 64 * 64; i += static_cast<int>(blockDim.x)) {
    const int row = i / 64, chunk = i % 64 / 8 ^ row % 8;
    to[half * 64 * 64 + i] = reinterpret_cast<const __nv_bfloat16*>(tile)[row * 64 + chunk * 8 + i % 8];
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

TEST(Tma, MulticastReachesEveryCtaOfTheCluster) {
  const auto values = random_integers(64 * 64, 4);
  const auto from = DeviceBuffer::copy_of(values.data(), values.size() * 2);
  const auto to = DeviceBuffer::zeros(2 * values.size() * 2);
  multicast_kernel<<<2, 32>>>(Map{make_token_map(matrix(from, 64, 64), {32, 1, 1}, false)}, to.as<__nv_bfloat16>());
  check(cudaGetLastError(), "multicast_kernel");
  std::vector<__nv_bfloat16> out(2 * values.size());
  check(cudaMemcpy(out.data(), to.as<void>(), to.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(__bfloat162float(out[i]), __bfloat162float(values[i % values.size()])) << i;
  }
}

/// Every CTA loads the same row and adds it.
__global__ void bulk_kernel(const float* from, float* to, int count) {
  __shared__ alignas(128) float row[512];
  __shared__ uint64_t full;
  if (threadIdx.x != 0) return;
  const auto bytes = static_cast<uint32_t>(count * sizeof(float));
  ptx::mbarrier_init(&full, 1);
  ptx::fence_barrier_init();
  ptx::mbarrier_arrive_expect_tx(&full, bytes);
  ptx::bulk_load(row, from, bytes, &full);
  ptx::mbarrier_wait(&full, 0);
  ptx::bulk_reduce_add_f32(to, row, bytes);
  ptx::tma_store_commit();
  ptx::tma_store_wait<0>();
}

TEST(Tma, BulkLoadsAndAddsFloatsOfManyCtas) {
  constexpr int kCount = 300, kCtas = 37;  // of 512: what lies behind must stay
  std::vector<float> values(512);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 100.0f;
  const auto from = DeviceBuffer::copy_of(values.data(), values.size() * sizeof(float)),
             to = DeviceBuffer::copy_of(values.data(), values.size() * sizeof(float));
  bulk_kernel<<<kCtas, 32>>>(from.as<float>(), to.as<float>(), kCount);
  check(cudaGetLastError(), "bulk_kernel");
  std::vector<float> out(values.size());
  check(cudaMemcpy(out.data(), to.as<void>(), to.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], i < kCount ? values[i] * (1 + kCtas) : values[i]) << i;
  }
}

constexpr int kManyRegisters = 160;

/// The first warpgroup gives registers away, the second takes them and keeps more values alive than it had room for.
__global__ void __launch_bounds__(256, 1) register_kernel(const float* from, float* to) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (threadIdx.x < 128) {
    ptx::register_decrease<40>();
    to[thread] = from[thread];
    return;
  }
  ptx::register_increase<232>();
  float values[kManyRegisters];
#pragma unroll
  for (int i = 0; i < kManyRegisters; ++i) values[i] = from[i * 128 + thread];
  float sum = 0;
#pragma unroll
  for (int i = kManyRegisters - 1; i >= 0; --i) sum = sum * 0.5f + values[i];
  to[128 + thread] = sum;
}

TEST(Warp, RegistersMoveBetweenWarpgroupsAndKeepTheirValues) {
  const auto values = random_integers(kManyRegisters * 128, 6);
  std::vector<float> floats;
  for (const auto& value : values) floats.push_back(__bfloat162float(value));
  const auto from = DeviceBuffer::copy_of(floats.data(), floats.size() * sizeof(float));
  const DeviceBuffer to(256 * sizeof(float));
  register_kernel<<<3, 256>>>(from.as<float>(), to.as<float>());
  check(cudaGetLastError(), "register_kernel");
  std::vector<float> out(256);
  check(cudaMemcpy(out.data(), to.as<void>(), to.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (int thread = 0; thread < 128; ++thread) {
    ASSERT_EQ(out[static_cast<size_t>(thread)], floats[static_cast<size_t>(thread)]);
    float sum = 0;
    for (int i = kManyRegisters - 1; i >= 0; --i)
      sum = std::fma(sum, 0.5f, floats[static_cast<size_t>(i * 128 + thread)]);
    ASSERT_EQ(out[static_cast<size_t>(128 + thread)], sum) << thread;
  }
}

__global__ void elect_kernel(int* elected) {
  const bool mine = ptx::elect_one();
  elected[blockIdx.x * blockDim.x + threadIdx.x] = mine;
}

TEST(Warp, ElectsOneLaneOfEveryWarp) {
  const DeviceBuffer elected(4 * 256 * sizeof(int));
  elect_kernel<<<4, 256>>>(elected.as<int>());
  check(cudaGetLastError(), "elect_kernel");
  std::vector<int> votes(4 * 256);
  check(cudaMemcpy(votes.data(), elected.as<void>(), elected.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (size_t warp = 0; warp < votes.size() / 32; ++warp) {
    int count = 0;
    for (size_t lane = 0; lane < 32; ++lane) count += votes[warp * 32 + lane];
    ASSERT_EQ(count, 1) << "warp " << warp;
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
