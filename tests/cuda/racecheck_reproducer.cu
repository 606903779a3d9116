// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What compute-sanitizer's racecheck says about the ring of words that the Hopper kernels pass from a producer warp to
// a consumer warpgroup, boiled down: `racecheck_reproducer each|warp|meet|race`. The program checks what the readers
// got; racecheck is run over it by tools/sanitize_gpu.sh. See docs/design/gpu_backends.md.

#include <cstdio>
#include <cstring>

#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warp.cuh"

namespace tangram::cuda {
namespace {

constexpr int kReaders = 128, kStages = 3, kSteps = 200;

enum class Release {
  kEach,  ///< every reader arrives on the barrier that the writer waits for
  kWarp,  ///< the lanes of a warp meet by __syncwarp, then one arrives for them
  kMeet,  ///< the readers meet at a named barrier, then one lane of each warp arrives for it
  kRace,  ///< one reader arrives for all without meeting them: a real race
};

template <Release kRelease>
__global__ void ring_kernel(int* sums) {
  __shared__ int word[kStages];
  __shared__ uint64_t full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    constexpr int kReadyFlags = kRelease == Release::kEach ? kReaders : kRelease == Release::kRace ? 1 : kReaders / 32;
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&full[i], 1);
      ptx::mbarrier_init(&empty[i], kReadyFlags);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kReaders) {
    if (threadIdx.x != kReaders) return;
    for (int step = 0; step < kSteps; ++step) {
      const int stage = step % kStages;
      ptx::mbarrier_wait(&empty[stage], (step / kStages & 1) ^ 1);
      word[stage] = step;
      ptx::mbarrier_arrive(&full[stage]);
    }
    return;
  }
  int sum = 0;
  for (int step = 0; step < kSteps; ++step) {
    const int stage = step % kStages;
    ptx::mbarrier_wait(&full[stage], step / kStages & 1);
    sum += word[stage];
    if constexpr (kRelease == Release::kEach) {
      ptx::mbarrier_arrive(&empty[stage]);
    } else if constexpr (kRelease == Release::kWarp) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&empty[stage]);
    } else if constexpr (kRelease == Release::kMeet) {
      ptx::named_barrier_sync(1, kReaders);
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&empty[stage]);
    } else {
      if (threadIdx.x == 0) ptx::mbarrier_arrive(&empty[stage]);
    }
  }
  sums[threadIdx.x] = sum;
}

int run(Release release) {
  const DeviceBuffer sums = DeviceBuffer::zeros(kReaders * sizeof(int));
  switch (release) {
    case Release::kEach: ring_kernel<Release::kEach><<<1, kReaders + 32>>>(sums.as<int>()); break;
    case Release::kWarp: ring_kernel<Release::kWarp><<<1, kReaders + 32>>>(sums.as<int>()); break;
    case Release::kMeet: ring_kernel<Release::kMeet><<<1, kReaders + 32>>>(sums.as<int>()); break;
    case Release::kRace: ring_kernel<Release::kRace><<<1, kReaders + 32>>>(sums.as<int>()); break;
  }
  check(cudaGetLastError(), "ring_kernel");
  int host[kReaders] = {};
  check(cudaMemcpy(host, sums.as<void>(), sizeof(host), cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (release == Release::kRace) return 0;  // readers may have been overtaken
  for (const int sum : host) {
    if (sum != kSteps * (kSteps - 1) / 2) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tangram::cuda

int main(int argc, char** argv) {
  using tangram::cuda::Release;
  const char* mode = argc == 2 ? argv[1] : "";
  if (std::strcmp(mode, "each") == 0) return tangram::cuda::run(Release::kEach);
  if (std::strcmp(mode, "warp") == 0) return tangram::cuda::run(Release::kWarp);
  if (std::strcmp(mode, "meet") == 0) return tangram::cuda::run(Release::kMeet);
  if (std::strcmp(mode, "race") == 0) return tangram::cuda::run(Release::kRace);
  std::fprintf(stderr, "usage: racecheck_reproducer each|warp|meet|race\n");
  return 2;
}
