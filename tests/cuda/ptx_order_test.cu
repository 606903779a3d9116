// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The PTX wrappers that order threads, proxies, CTAs and grids, and the approximate functions. Each order is what makes
// the result right: values are handed on in memory that is written again at once.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::cuda {
namespace {

template <class T>
std::vector<T> fetch(const DeviceBuffer& buffer) {
  std::vector<T> values(buffer.bytes() / sizeof(T));
  check(cudaMemcpy(values.data(), buffer.as<void>(), buffer.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values;
}

constexpr int kRounds = 300;

/// One thread passes 0, 1, 2, ... through a ring of two slots; every reader adds them up.
__global__ void ring_kernel(int32_t* sums) {
  __shared__ int32_t slots[2];
  __shared__ uint64_t full[2], empty[2];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&full[i], 1);
      ptx::mbarrier_init(&empty[i], 64);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int round = 0; round < kRounds; ++round) {
      ptx::mbarrier_wait(&empty[round % 2], round / 2 % 2 ^ 1);
      slots[round % 2] = round;
      ptx::mbarrier_arrive(&full[round % 2]);
    }
  } else if (threadIdx.x >= 32) {
    int32_t sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      ptx::mbarrier_wait(&full[round % 2], round / 2 % 2);
      sum += slots[round % 2];
      ptx::mbarrier_arrive(&empty[round % 2]);
    }
    sums[threadIdx.x - 32] = sum;
  }
}

TEST(Mbarrier, HandsValuesThroughARing) {
  const DeviceBuffer sums = DeviceBuffer::zeros(64 * sizeof(int32_t));
  ring_kernel<<<1, 96>>>(sums.as<int32_t>());
  check(cudaGetLastError(), "ring_kernel");
  EXPECT_EQ(fetch<int32_t>(sums), std::vector<int32_t>(64, kRounds * (kRounds - 1) / 2));
}

/// Two warpgroups take turns to append to a list.
__global__ void turns_kernel(int32_t* list) {
  __shared__ int32_t length;
  if (threadIdx.x == 0) length = 0;
  __syncthreads();
  const uint32_t warpgroup = threadIdx.x / 128;
  if (warpgroup == 1) ptx::named_barrier_arrive(1, 256);
  for (int round = 0; round < kRounds; ++round) {
    ptx::named_barrier_sync(1 + warpgroup, 256);
    if (threadIdx.x % 128 == 77) list[length++] = static_cast<int32_t>(warpgroup);
    ptx::named_barrier_arrive(1 + (1 - warpgroup), 256);
  }
  if (warpgroup == 0) ptx::named_barrier_sync(1, 256);  // the turn that no warpgroup takes
}

TEST(Warp, NamedBarriersPassTurns) {
  const DeviceBuffer list = DeviceBuffer::zeros(2 * kRounds * sizeof(int32_t));
  turns_kernel<<<1, 256>>>(list.as<int32_t>());
  check(cudaGetLastError(), "turns_kernel");
  const std::vector<int32_t> turns = fetch<int32_t>(list);
  for (size_t i = 0; i < turns.size(); ++i) ASSERT_EQ(turns[i], static_cast<int32_t>(i % 2)) << i;
}

/// Each round all threads write a row, which leaves by a bulk store, and write over it as soon as it has been read.
__global__ void bulk_store_kernel(int32_t* to) {
  __shared__ alignas(128) int32_t row[128];
  for (int round = 0; round < kRounds; ++round) {
    row[threadIdx.x] = round * 128 + static_cast<int32_t>(threadIdx.x);
    ptx::fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::bulk_store(to + round * 128, row, sizeof(row));
      ptx::tma_store_commit();
      ptx::tma_store_wait_read<0>();
    }
    __syncthreads();
  }
}

TEST(Tma, BulkStoresReadWhatThreadsWroteBeforeItIsOverwritten) {
  const DeviceBuffer to = DeviceBuffer::zeros(kRounds * 128 * sizeof(int32_t));
  bulk_store_kernel<<<1, 128>>>(to.as<int32_t>());
  check(cudaGetLastError(), "bulk_store_kernel");
  const std::vector<int32_t> out = fetch<int32_t>(to);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], static_cast<int32_t>(i)) << i;
}

/// CTAs, all resident, change values in the order of their numbers, without atomic accesses to them.
__global__ void chain_kernel(int32_t* turn, int32_t* values, float4* sums) {
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(turn) != static_cast<int32_t>(blockIdx.x)) {
    }
    for (int i = 0; i < 64; ++i) values[i] = values[i] * 3 + static_cast<int32_t>(blockIdx.x);
    if (blockIdx.x % 2 == 0) {
      ptx::add_release(turn, 1);
    } else {
      ptx::store_release(turn, static_cast<int32_t>(blockIdx.x) + 1);
    }
    ptx::reduce_add_f32x4(sums, {1.0f, 2.0f, 3.0f, 4.0f});
  }
}

TEST(Memory, ReleasesAndAcquiresOrderCtasAndAdditionsAreAtomic) {
  constexpr int kCtas = 16;
  const DeviceBuffer turn = DeviceBuffer::zeros(sizeof(int32_t)), values = DeviceBuffer::zeros(64 * sizeof(int32_t)),
                     sums = DeviceBuffer::zeros(sizeof(float4));
  chain_kernel<<<kCtas, 32>>>(turn.as<int32_t>(), values.as<int32_t>(), sums.as<float4>());
  check(cudaGetLastError(), "chain_kernel");
  int32_t expected = 0;
  for (int cta = 0; cta < kCtas; ++cta) expected = expected * 3 + cta;
  EXPECT_EQ(fetch<int32_t>(values), std::vector<int32_t>(64, expected));
  EXPECT_EQ(fetch<float>(sums), (std::vector<float>{kCtas, 2 * kCtas, 3 * kCtas, 4 * kCtas}));
}

/// Lets its dependents start at once and writes late.
__global__ void first_kernel(int32_t* values) {
  ptx::grid_dependency_launch();
  for (int i = 0; i < 100; ++i) __nanosleep(1000);
  values[threadIdx.x] = static_cast<int32_t>(threadIdx.x) + 1;
}
__global__ void second_kernel(const int32_t* values, int32_t* to) {
  ptx::grid_dependency_wait();
  to[threadIdx.x] = values[threadIdx.x] * 2;
}

TEST(Warp, DependentGridsSeeWhatTheGridBeforeThemWrote) {
  const DeviceBuffer values = DeviceBuffer::zeros(64 * sizeof(int32_t)), to = DeviceBuffer::zeros(64 * sizeof(int32_t));
  first_kernel<<<1, 64>>>(values.as<int32_t>());
  check(cudaGetLastError(), "first_kernel");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(64);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, second_kernel, values.as<const int32_t>(), to.as<int32_t>()), "second_kernel");
  const std::vector<int32_t> out = fetch<int32_t>(to);
  for (int i = 0; i < 64; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], 2 * (i + 1));
}

struct Approximations {
  float exp2, log2, reciprocal, tanh;
};

__global__ void approximate_kernel(const float* x, Approximations* y, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    y[i] = {ptx::exp2_approx(x[i]), ptx::log2_approx(fabsf(x[i])), ptx::reciprocal_approx(x[i]),
            ptx::tanh_approx(x[i])};
  }
}

TEST(Warp, ApproximationsAreAsGoodAsTheySay) {
  std::vector<float> x;
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) * 0.0101f + 0.003f);
  const DeviceBuffer from = DeviceBuffer::copy_of(x.data(), x.size() * sizeof(float));
  const DeviceBuffer to = DeviceBuffer::zeros(x.size() * sizeof(Approximations));
  approximate_kernel<<<1, 128>>>(from.as<float>(), to.as<Approximations>(), static_cast<int>(x.size()));
  check(cudaGetLastError(), "approximate_kernel");
  const std::vector<Approximations> y = fetch<Approximations>(to);
  // Twice what the wrappers say; the PTX ISA gives the same magnitudes.
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    EXPECT_NEAR(y[i].exp2 / std::exp2(at), 1, std::ldexp(1.0, -21)) << at;
    EXPECT_NEAR(y[i].log2, std::log2(std::abs(at)), std::ldexp(std::max(1.0, std::abs(std::log2(std::abs(at)))), -21));
    EXPECT_NEAR(y[i].reciprocal * at, 1, std::ldexp(1.0, -22)) << at;
    EXPECT_NEAR(y[i].tanh, std::tanh(at), std::ldexp(1.0, -10)) << at;
  }
}

}  // namespace
}  // namespace tangram::cuda
