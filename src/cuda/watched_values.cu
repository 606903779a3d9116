// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <atomic>

#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"
#include "cuda/load_kernel.hpp"
#include "cuda/watched_values.hpp"
#include "tangram/error.hpp"

namespace tangram::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBytesOfBlock = 16 << 10;  // that a block compares; more blocks up to kMostBlocks, then more bytes
constexpr int64_t kMostBlocks = 128;

struct PoisonParams {
  WatchedValues values[kMostWatched];
  WatchedResult results[kMostWatched];
  int num_values;
  int num_results;
  int32_t* changed;  // in page-locked memory of the host
};

template <typename T>
__device__ __forceinline__ bool differ(const WatchedValues& values, int64_t first, int64_t step) {
  const T* now = static_cast<const T*>(values.now);
  const T* known = static_cast<const T*>(values.known);
  const int64_t count = values.num_bytes / static_cast<int64_t>(sizeof(T));
  bool differs = false;
  for (int64_t i = first; i < count; i += step) differs |= now[i] != known[i];
  return differs;
}

__device__ __forceinline__ bool are_words(const WatchedValues& values) {
  return (reinterpret_cast<uintptr_t>(values.now) | reinterpret_cast<uintptr_t>(values.known) |
          static_cast<uintptr_t>(values.num_bytes)) %
             sizeof(uint32_t) ==
         0;
}

// By one block: this is the way of an error, and its time does not matter.
__device__ void fill(const WatchedResult& result) {
  auto* bytes = static_cast<uint8_t*>(result.data);
  int64_t filled = 0;
  if (reinterpret_cast<uintptr_t>(bytes) % sizeof(uint4) == 0) {
    const int64_t count = result.num_bytes / static_cast<int64_t>(sizeof(uint4));
    const uint4 ones{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff};
    for (int64_t i = threadIdx.x; i < count; i += kThreads) static_cast<uint4*>(result.data)[i] = ones;
    filled = count * static_cast<int64_t>(sizeof(uint4));
  }
  for (int64_t i = filled + threadIdx.x; i < result.num_bytes; i += kThreads) bytes[i] = 0xff;
}

// Each block compares a part of the values, and fills all results if it finds a difference: blocks need not wait for
// each other.
__global__ void __launch_bounds__(kThreads) poison_kernel(const __grid_constant__ PoisonParams params) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  bool differs = false;
  for (int i = 0; i < params.num_values; ++i) {
    const WatchedValues& values = params.values[i];
    differs |= are_words(values) ? differ<uint32_t>(values, first, step) : differ<uint8_t>(values, first, step);
  }
  if (__syncthreads_or(differs ? 1 : 0) == 0) return;
  for (int i = 0; i < params.num_results; ++i) fill(params.results[i]);
  if (threadIdx.x == 0) {
    *static_cast<volatile int32_t*>(params.changed) = 1;
    __threadfence_system();
  }
}

std::atomic<int32_t*>& changed_flag() {
  static std::atomic<int32_t*> changed_flag = nullptr;  // never freed: graphs hold it
  return changed_flag;
}

int32_t* made_flag() {
  int32_t* known = changed_flag().load(std::memory_order_acquire);
  if (known != nullptr) return known;
  const AllowAllocationDuringCapture allow;
  void* page = nullptr;
  check(cudaHostAlloc(&page, sizeof(int32_t), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
  auto* made = new (page) int32_t(0);
  if (changed_flag().compare_exchange_strong(known, made)) return made;
  static_cast<void>(cudaFreeHost(page));  // another thread was first
  return known;
}

}  // namespace

void poison_if_changed(std::span<const WatchedValues> values, std::span<const WatchedResult> results,
                       cudaStream_t stream) {
  if (values.size() > kMostWatched || results.size() > kMostWatched) {
    throw InternalError("poison_if_changed: takes 3 values and 3 results at most");
  }
  PoisonParams params{};
  std::copy(values.begin(), values.end(), params.values);
  std::copy(results.begin(), results.end(), params.results);
  params.num_values = static_cast<int>(values.size());
  params.num_results = static_cast<int>(results.size());
  params.changed = made_flag();
  int64_t num_bytes = 0;
  for (const WatchedValues& each : values) num_bytes += each.num_bytes;
  const int64_t blocks = std::clamp<int64_t>((num_bytes + kBytesOfBlock - 1) / kBytesOfBlock, 1, kMostBlocks);
  load_kernel<poison_kernel>();
  poison_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(params);
  check(cudaGetLastError(), "poison_if_changed launch");
}

bool take_changed() {
  int32_t* const changed = changed_flag().load(std::memory_order_acquire);
  if (changed == nullptr) return false;
  const std::atomic_ref flag(*changed);
  return flag.load(std::memory_order_relaxed) != 0 && flag.exchange(0) != 0;
}

}  // namespace tangram::cuda
