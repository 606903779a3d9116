// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/load_kernel.hpp"
#include "runtime/device/row_kernels.hpp"

namespace tangram::device {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 132 * 8;  // enough to fill the memory system; each walks over its rows

enum class Element : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

/// Rows of a tensor as a kernel walks them. Strides are in elements.
struct Rows {
  const void* data;
  const int32_t* map;
  int64_t row_stride;
  int64_t head_stride;
  Element element;
};

struct Job {
  Rows source;
  Rows addend;
  Rows result;
  int64_t num_rows;
  int32_t heads;
  int32_t vectors;  ///< of eight elements, in one head
  bool plain;       ///< a copy of equal dtypes without addend, 16-bit
};

struct Jobs {
  Job job[kMaxRowJobs];
};

__device__ __forceinline__ int64_t row_of(const Rows& rows, int64_t i) { return rows.map == nullptr ? i : rows.map[i]; }

template <typename Pair, typename Unpack>
__device__ __forceinline__ void unpack_eight(float (&x)[8], const uint4& words, Unpack unpack) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    Pair pair;
    memcpy(&pair, &word[i], 4);
    const float2 value = unpack(pair);
    x[2 * i] = value.x;
    x[2 * i + 1] = value.y;
  }
}

__device__ __forceinline__ void load_eight(float (&x)[8], const Rows& rows, int64_t at) {
  if (rows.element == Element::kFloat32) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(rows.data) + at);
    const float4 low = from[0], high = from[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
  const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows.data) + at);
  if (rows.element == Element::kBFloat16) {
    unpack_eight<__nv_bfloat162>(x, words, [](const __nv_bfloat162& p) { return __bfloat1622float2(p); });
  } else {
    unpack_eight<__half2>(x, words, [](const __half2& p) { return __half22float2(p); });
  }
}

__device__ __forceinline__ void store_eight(const float (&x)[8], const Rows& rows, int64_t at) {
  void* data = const_cast<void*>(rows.data);
  if (rows.element == Element::kFloat32) {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(data) + at);
    to[0] = {x[0], x[1], x[2], x[3]};
    to[1] = {x[4], x[5], x[6], x[7]};
    return;
  }
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (rows.element == Element::kBFloat16) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      memcpy(&word[i], &pair, 4);
    } else {
      const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
      memcpy(&word[i], &pair, 4);
    }
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(data) + at) = {word[0], word[1], word[2], word[3]};
}

/// Adds row `row` of `rows`, or nothing when there is none.
__device__ __forceinline__ void add_eight(float (&sum)[8], const Rows& rows, int64_t row, int64_t head,
                                          int64_t column) {
  if (rows.data == nullptr || row < 0) return;
  float x[8];
  load_eight(x, rows, row * rows.row_stride + head * rows.head_stride + column);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += x[i];
}

/// One thread moves eight elements at a time. The second dimension of the grid is the job.
__global__ void __launch_bounds__(kThreads) row_kernel(const __grid_constant__ Jobs jobs) {
  const Job& job = jobs.job[blockIdx.y];
  const int64_t row_vectors = int64_t{job.heads} * job.vectors;
  const int64_t total = job.num_rows * row_vectors;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += step) {
    const int64_t entry = i / row_vectors;
    const int32_t in_row = static_cast<int32_t>(i - entry * row_vectors);
    const int32_t head = in_row / job.vectors;
    const int32_t column = (in_row - head * job.vectors) * 8;
    const int64_t from = row_of(job.source, entry), to = row_of(job.result, entry);
    const int64_t result_at = to * job.result.row_stride + head * job.result.head_stride + column;
    if (job.plain) {
      const uint16_t* source = static_cast<const uint16_t*>(job.source.data);
      uint16_t* result = static_cast<uint16_t*>(const_cast<void*>(job.result.data));
      *reinterpret_cast<uint4*>(result + result_at) = *reinterpret_cast<const uint4*>(
          source + from * job.source.row_stride + head * job.source.head_stride + column);
      continue;
    }
    float sum[8] = {};
    add_eight(sum, job.source, from, head, column);
    if (job.addend.data != nullptr) add_eight(sum, job.addend, row_of(job.addend, entry), head, column);
    store_eight(sum, job.result, result_at);
  }
}

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return Element::kBFloat16;
    case DType::kFloat16: return Element::kFloat16;
    default: return Element::kFloat32;
  }
}

Rows rows_of(const ConstTensorView& view, const int32_t* map) {
  return {view.data, map, view.row_stride, view.head_stride, element_of(view.dtype)};
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float* values, int64_t count, float factor) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) values[i] *= factor;
}

}  // namespace

void load_row_kernels() {
  cuda::load_kernel<row_kernel>();
  cuda::load_kernel<scale_kernel>();
}

void run_row_jobs(std::span<const RowJob> jobs, cudaStream_t stream) {
  Jobs params{};
  unsigned count = 0;
  int64_t most_vectors = 0;
  for (const RowJob& job : jobs) {
    if (job.num_rows == 0) continue;
    Job& to = params.job[count++];
    to.source = rows_of(job.source, job.from);
    to.addend = rows_of(job.addend, job.add_from);
    to.result = rows_of(job.result, job.to);
    to.num_rows = job.num_rows;
    to.heads = job.result.heads;
    to.vectors = job.result.dim / 8;
    to.plain = job.addend.data == nullptr && job.source.data != nullptr && job.source.dtype == job.result.dtype &&
               size_of(job.result.dtype) == 2;
    most_vectors = std::max(most_vectors, job.num_rows * to.heads * to.vectors);
  }
  if (count == 0) return;
  const int64_t blocks = std::min<int64_t>((most_vectors + kThreads - 1) / kThreads, kMaxBlocks);
  row_kernel<<<dim3(static_cast<unsigned>(blocks), count), kThreads, 0, stream>>>(params);
  cuda::check(cudaGetLastError(), "row kernel launch");
}

void scale_values(float* values, int64_t count, float factor, cudaStream_t stream) {
  if (count == 0) return;
  scale_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(values, count,
                                                                                                  factor);
  cuda::check(cudaGetLastError(), "scale kernel launch");
}

}  // namespace tangram::device
