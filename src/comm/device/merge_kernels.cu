// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "comm/device/epoch.cuh"
#include "cuda/device_info.hpp"
#include "cuda/load_kernel.hpp"

namespace tangram::comm {

namespace {

struct alignas(16) Bfloat16x8 {
  __nv_bfloat162 pairs[4];
};
struct alignas(16) Halfx8 {
  __half2 pairs[4];
};

/// Eight elements from number `idx` on, which is a multiple of 8, as float32.
__device__ void load8(const void* data, DType dtype, int64_t idx, float (&values)[8]) {
  if (dtype == DType::kFloat32) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(data) + idx);
    const float4 low = from[0], high = from[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
  } else if (dtype == DType::kBFloat16) {
    const auto packed = *reinterpret_cast<const Bfloat16x8*>(static_cast<const __nv_bfloat16*>(data) + idx);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __low2float(packed.pairs[i]);
      values[2 * i + 1] = __high2float(packed.pairs[i]);
    }
  } else {
    const auto packed = *reinterpret_cast<const Halfx8*>(static_cast<const __half*>(data) + idx);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __low2float(packed.pairs[i]);
      values[2 * i + 1] = __high2float(packed.pairs[i]);
    }
  }
}

__device__ void store8(void* data, DType dtype, int64_t idx, const float (&values)[8]) {
  if (dtype == DType::kFloat32) {
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(data) + idx);
    to[0] = {values[0], values[1], values[2], values[3]};
    to[1] = {values[4], values[5], values[6], values[7]};
  } else if (dtype == DType::kBFloat16) {
    Bfloat16x8 packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed.pairs[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    *reinterpret_cast<Bfloat16x8*>(static_cast<__nv_bfloat16*>(data) + idx) = packed;
  } else {
    Halfx8 packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed.pairs[i] = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
    *reinterpret_cast<Halfx8*>(static_cast<__half*>(data) + idx) = packed;
  }
}

__global__ void __launch_bounds__(256) convert_chunks(const __grid_constant__ MoveParams params) {
  for (int i = static_cast<int>(blockIdx.x); i < params.count; i += static_cast<int>(gridDim.x)) {
    const Chunk chunk = params.chunks[i];
    const int64_t first = chunk.from / 2;
    char* to = params.bases[chunk.peer] + chunk.to;
    for (int j = static_cast<int>(threadIdx.x); j < chunk.num_bytes / 16; j += 256) {
      float values[8];
      load8(params.sources[chunk.tensor], DType::kFloat32, first + 8 * j, values);
      store8(to, DType::kBFloat16, 8 * j, values);
    }
  }
}

__device__ void add8(const void* data, DType dtype, int64_t idx, float (&sum)[8]) {
  float values[8];
  load8(data, dtype, idx, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += values[i];
}

/// Called by all threads of every block of the grid; the last block to call it closes the epoch.
__device__ __forceinline__ void end_if_last(const MergeJobs& jobs) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(jobs.num_ended, 1) == gridDim.x * gridDim.y - 1;
  __syncthreads();
  if (!is_last) return;
  if (threadIdx.x == 0) *jobs.num_ended = 0;
  __threadfence();
  release(jobs.epoch, jobs.sent, [] {});
}

/// One warp per row of a tensor; the second dimension of the grid is the tensor. The terms of an element are added in
/// the order of ranks. A lane has kAhead loads of eight elements under way at a time.
__global__ void __launch_bounds__(256) merge_rows(const __grid_constant__ MergeJobs jobs) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (blockIdx.x == 0 && blockIdx.y == 0) send_signals(jobs.wait);
  if (jobs.wait.count > 0) {
    wait_for_list(jobs.wait);
    __syncthreads();
  }
  const MergeParams& params = jobs.tensors[blockIdx.y];
  constexpr int kAhead = 4, kStride = 8 * 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t num_warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t num_rows = params.num_rows == nullptr ? params.rows : *params.num_rows;
  for (int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32; i < num_rows; i += num_warps) {
    const int64_t row = params.chosen == nullptr ? i : params.chosen[i];
    const int begin = params.begin[i], end = params.begin[i + 1];
    const bool has_own = params.num_before[i] >= 0;
    const int middle = begin + (has_own ? params.num_before[i] : ~params.num_before[i]);
    for (int first = 8 * lane; first < params.row_elements; first += kAhead * kStride) {
      float own[kAhead][8] = {}, sum[kAhead][8] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int element = first + k * kStride;
        if (has_own && element < params.row_elements) {
          load8(params.own, params.own_dtype, row * params.row_elements + element, own[k]);
        }
      }
      const auto add_returned = [&](int from, int to) {
        for (int i = from; i < to; ++i) {
          const int64_t at = int64_t{params.entries[i]} * params.row_elements;
#pragma unroll
          for (int k = 0; k < kAhead; ++k) {
            const int element = first + k * kStride;
            if (element < params.row_elements) add8(params.returned, params.returned_dtype, at + element, sum[k]);
          }
        }
      };
      add_returned(begin, middle);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[k][i] += own[k][i];
      }
      add_returned(middle, end);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int element = first + k * kStride;
        if (element < params.row_elements) {
          store8(params.sums, params.sums_dtype, row * params.row_elements + element, sum[k]);
        }
      }
    }
  }
  if (jobs.num_ended != nullptr) end_if_last(jobs);
}

}  // namespace

void launch_convert(const MoveParams& params, int num_blocks, cudaStream_t stream) {
  if (params.count == 0) return;
  convert_chunks<<<static_cast<unsigned>(std::min(num_blocks, params.count)), 256, 0, stream>>>(params);
  check_launch("convert_chunks");
}

namespace {

// All blocks of a merge may wait themselves, without a kernel before them, up to this number: two a multiprocessor of
// an H100 (NOTE [gentle polls]). Merges of more rows take longer than that kernel.
constexpr unsigned kMostWaiting = 264;

/// Whether there was anything to launch.
bool launch_merge_jobs(std::span<const MergeParams> tensors, const WaitParams& wait, MergeJobs& jobs, bool dependent,
                       cudaStream_t stream) {
  int64_t most_rows = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    jobs.tensors[t] = tensors[t];
    most_rows = std::max(most_rows, tensors[t].rows);
  }
  const int64_t max_blocks = cuda::info_of_current_device().memory_blocks();
  auto blocks = static_cast<unsigned>(std::min((most_rows + 7) / 8, max_blocks));
  const auto num_tensors = static_cast<unsigned>(tensors.size());
  // NOTE [few wait]: the kernel alone may know how many rows there are, so a waiting grid would be as large as the GPU.
  // A peer could then wait for other kernels of this process that find no room beside it.
  const bool may_wait = tensors.empty() || tensors.front().num_rows == nullptr;
  if (blocks > 0 && may_wait && blocks * num_tensors <= kMostWaiting) {
    jobs.wait = wait;
  } else {
    launch_wait(wait, stream);
  }
  if (blocks == 0) return false;
  launch(merge_rows, dim3(blocks, num_tensors), 256, dependent, stream, "merge_rows", jobs);
  return true;
}

}  // namespace

void launch_merge(std::span<const MergeParams> tensors, const WaitParams& wait, cudaStream_t stream) {
  MergeJobs jobs;
  launch_merge_jobs(tensors, wait, jobs, false, stream);
}

void launch_merge_and_end(std::span<const MergeParams> tensors, const WaitParams& wait, const EpochParams& epoch,
                          const SentWord& sent, uint32_t* num_ended, bool dependent, cudaStream_t stream) {
  MergeJobs jobs;
  jobs.sent = sent;
  jobs.epoch = epoch;
  jobs.num_ended = num_ended;
  if (!launch_merge_jobs(tensors, wait, jobs, dependent, stream)) launch_end(epoch, sent, dependent, stream);
}

void load_merge_kernels() {
  cuda::load_kernel<convert_chunks>();
  cuda::load_kernel<merge_rows>();
}

}  // namespace tangram::comm
