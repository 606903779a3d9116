// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Teams of GPU threads for what builds lists of masks (src/schedule/builder/team.hpp): a warp, and a block.
#pragma once

#include <cstdint>

#include "cuda/ptx/warp.cuh"
#include "schedule/builder/team.hpp"

namespace tangram::gpu::builder {

inline constexpr uint32_t kAllLanes = 0xffffffff;

/// Changes of memory that several teams make at once.
struct DeviceAtomics {
  __device__ static int32_t add(int32_t* at, int32_t value) { return atomicAdd(at, value); }
  __device__ static uint64_t add(uint64_t* at, uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
  }
  __device__ static void raise(int32_t* at, int32_t value) { atomicMax(at, value); }
  __device__ static void lower(uint32_t* at, uint32_t value) { atomicMin(at, value); }
  __device__ static uint32_t set_bits(uint32_t* at, uint32_t bits) { return atomicOr(at, bits); }
};

/// The warp of the calling thread, whose lanes are all there.
struct WarpTeam : DeviceAtomics {
  __device__ static int32_t rank() { return static_cast<int32_t>(threadIdx.x % 32); }
  __device__ static constexpr int32_t size() { return 32; }
  __device__ void sync() const { __syncwarp(); }
  __device__ int64_t sum(int64_t value) const {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAllLanes, value, lanes);
    return value;
  }
  __device__ int64_t greatest(int64_t value) const {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const int64_t other = __shfl_xor_sync(kAllLanes, value, lanes);
      value = value < other ? other : value;
    }
    return value;
  }
  __device__ uint64_t any_bits(uint64_t bits) const {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) bits |= __shfl_xor_sync(kAllLanes, bits, lanes);
    return bits;
  }
  __device__ bool all(bool value) const { return __all_sync(kAllLanes, value) != 0; }
  __device__ int64_t first(int64_t value) const { return __shfl_sync(kAllLanes, value, 0); }
  __device__ int32_t sum_before(int32_t value, int32_t& total) const {
    int32_t sum = value;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int32_t below = __shfl_sync(kAllLanes, sum, (rank() - lanes) & 31);
      if (rank() >= lanes) sum += below;
    }
    total = __shfl_sync(kAllLanes, sum, 31);
    return sum - value;
  }
  __device__ int32_t greatest_before(int32_t value, int32_t& total) const {
    int32_t greatest = value;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int32_t below = __shfl_sync(kAllLanes, greatest, (rank() - lanes) & 31);
      if (rank() >= lanes) greatest = max(greatest, below);
    }
    total = __shfl_sync(kAllLanes, greatest, 31);
    const int32_t before = __shfl_sync(kAllLanes, greatest, (rank() - 1) & 31);
    return rank() == 0 ? 0 : before;
  }
  __device__ int32_t count_before(bool value, int32_t& total) const {
    const uint32_t lanes = __ballot_sync(kAllLanes, value);
    total = __popc(lanes);
    return __popc(lanes & ((1u << rank()) - 1));
  }
};

/// All threads of a block; `words`: 32 in shared memory.
///
/// NOTE [whole warps] ptxas assumes that a warp has reconverged after __syncthreads(). So it may copy a uniform
/// condition, not known to be uniform, into both branches of a divergent one. The branches then reconverge only at the
/// next barrier, and shuffles after it run with a part of the warp. So warps synchronise before blocks do.
template <int kThreads>
struct BlockTeam : DeviceAtomics {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  int64_t* words;

  __device__ explicit BlockTeam(int64_t* shared) : words(shared) {}
  __device__ static int32_t rank() { return static_cast<int32_t>(threadIdx.x); }
  __device__ static constexpr int32_t size() { return kThreads; }
  __device__ void sync() const {
    __syncwarp();  // NOTE [whole warps]
    __syncthreads();
  }
  __device__ int64_t sum(int64_t value) const {
    __syncwarp();
    const int64_t of_lane = gather(WarpTeam().sum(value));
    return WarpTeam().sum(of_lane);
  }
  /// Greatest value of the team; values must not be negative.
  __device__ int64_t greatest(int64_t value) const {
    __syncwarp();
    const int64_t of_lane = gather(WarpTeam().greatest(value));
    return WarpTeam().greatest(of_lane);
  }
  __device__ int32_t sum_before(int32_t value, int32_t& total) const {
    __syncwarp();
    int32_t of_warp;
    const int32_t in_warp = WarpTeam().sum_before(value, of_warp);
    const int32_t of_lane = static_cast<int32_t>(gather(of_warp));
    const int32_t before = WarpTeam().sum_before(of_lane, total);
    return in_warp + __shfl_sync(kAllLanes, before, rank() / 32);
  }
  __device__ int32_t greatest_before(int32_t value, int32_t& total) const {
    __syncwarp();
    int32_t of_warp;
    const int32_t in_warp = WarpTeam().greatest_before(value, of_warp);
    const int32_t of_lane = static_cast<int32_t>(gather(of_warp));
    const int32_t before = WarpTeam().greatest_before(of_lane, total);
    return max(in_warp, __shfl_sync(kAllLanes, before, rank() / 32));
  }

 private:
  /// Gives each lane the value of the warp with its number.
  __device__ int64_t gather(int64_t of_warp) const {
    sync();  // all have read what was there before
    if (rank() % 32 == 0) words[rank() / 32] = of_warp;
    sync();
    return rank() % 32 < kThreads / 32 ? words[rank() % 32] : 0;
  }
};

}  // namespace tangram::gpu::builder
