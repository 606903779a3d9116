// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/device_info.hpp"
#include "cuda/load_kernel.hpp"
#include "runtime/device/row_kernels.hpp"
#include "runtime/device/row_vectors.cuh"

namespace tangram::device {
namespace {

constexpr int kThreads = 256;

/// Rows of which a map, unless it is null, names some.
struct MappedRows {
  Rows rows;
  const int32_t* map;

  __device__ __forceinline__ int64_t row(int64_t i) const { return map == nullptr ? i : map[i]; }
};

struct Job {
  MappedRows source;
  MappedRows addend;
  MappedRows result;
  const int32_t* add_begins;
  int64_t num_rows;
  int32_t heads;
  int32_t vectors;  ///< of eight elements, in one head
  bool plain;       ///< a copy of equal dtypes without addend, 16-bit
};

struct Jobs {
  Job job[kMaxRowJobs];
};

/// Adds row `row` of `rows`, or nothing when there is none.
__device__ __forceinline__ void add_eight(float (&sum)[8], const Rows& rows, int64_t row, int64_t head,
                                          int64_t column) {
  if (rows.data == nullptr || row < 0) return;
  float x[8];
  load_eight(x, rows, rows.at(row, head) + column);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += x[i];
}

/// The addends of an entry, added up.
__device__ __forceinline__ void add_listed(float (&sum)[8], const Job& job, int64_t entry, int64_t head,
                                           int64_t column) {
  float added[8] = {};
  for (int32_t i = job.add_begins[entry]; i < job.add_begins[entry + 1]; ++i) {
    add_eight(added, job.addend.rows, job.addend.map[i], head, column);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += added[i];
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
    const int64_t from = job.source.row(entry);
    const int64_t result_at = job.result.rows.at(job.result.row(entry), head) + column;
    if (job.plain) {
      const uint16_t* source = static_cast<const uint16_t*>(job.source.rows.data);
      uint16_t* result = static_cast<uint16_t*>(const_cast<void*>(job.result.rows.data));
      *reinterpret_cast<uint4*>(result + result_at) =
          *reinterpret_cast<const uint4*>(source + job.source.rows.at(from, head) + column);
      continue;
    }
    float sum[8] = {};
    add_eight(sum, job.source.rows, from, head, column);
    if (job.add_begins != nullptr) {
      add_listed(sum, job, entry, head, column);
    } else if (job.addend.rows.data != nullptr) {
      add_eight(sum, job.addend.rows, job.addend.row(entry), head, column);
    }
    store_eight(sum, job.result.rows, result_at);
  }
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float* values, int64_t count, float factor) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) values[i] *= factor;
}

constexpr size_t kMaxCopies = 32;  // in one launch

struct Copies {
  FloatCopy copy[kMaxCopies];
};

/// The second dimension of the grid is the copy.
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Copies copies) {
  const FloatCopy& copy = copies.copy[blockIdx.y];
  const int64_t total = copy.rows * copy.columns;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / copy.columns, column = i - row * copy.columns;
    copy.to[row * copy.to_stride + column] =
        copy.from == nullptr ? copy.value : copy.from[row * copy.from_stride + column];
  }
}

}  // namespace

void load_row_kernels() {
  cuda::load_kernel<row_kernel>();
  cuda::load_kernel<scale_kernel>();
  cuda::load_kernel<copy_kernel>();
}

void run_row_jobs(std::span<const RowJob> jobs, cudaStream_t stream) {
  Jobs params{};
  unsigned count = 0;
  int64_t most_vectors = 0;
  for (const RowJob& job : jobs) {
    if (job.num_rows == 0) continue;
    Job& to = params.job[count++];
    to.source = {rows_of(job.source), job.from};
    to.addend = {rows_of(job.addend), job.add_from};
    to.result = {rows_of(job.result), job.to};
    to.add_begins = job.add_begins;
    to.num_rows = job.num_rows;
    to.heads = job.result.heads;
    to.vectors = job.result.dim / 8;
    to.plain = job.addend.data == nullptr && job.source.data != nullptr && job.source.dtype == job.result.dtype &&
               size_of(job.result.dtype) == 2;
    most_vectors = std::max(most_vectors, job.num_rows * to.heads * to.vectors);
  }
  if (count == 0) return;
  const int64_t blocks =
      std::min<int64_t>((most_vectors + kThreads - 1) / kThreads, cuda::info_of_current_device().memory_blocks());
  row_kernel<<<dim3(static_cast<unsigned>(blocks), count), kThreads, 0, stream>>>(params);
  cuda::check(cudaGetLastError(), "row kernel launch");
}

void scale_values(float* values, int64_t count, float factor, cudaStream_t stream) {
  if (count == 0) return;
  scale_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(values, count,
                                                                                                  factor);
  cuda::check(cudaGetLastError(), "scale kernel launch");
}

void copy_floats(std::span<const FloatCopy> copies, cudaStream_t stream) {
  // A block for each multiprocessor: values are few beside rows of tensors.
  const int64_t max_blocks = cuda::info_of_current_device().multiprocessors;
  for (size_t first = 0; first < copies.size(); first += kMaxCopies) {
    const auto some = copies.subspan(first, std::min(kMaxCopies, copies.size() - first));
    Copies params{};
    std::copy(some.begin(), some.end(), params.copy);
    int64_t most = 1;
    for (const FloatCopy& copy : some) most = std::max(most, copy.rows * copy.columns);
    const int64_t blocks = std::min((most + kThreads - 1) / kThreads, max_blocks);
    copy_kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(some.size())), kThreads, 0, stream>>>(
        params);
    cuda::check(cudaGetLastError(), "float copy kernel launch");
  }
}

}  // namespace tangram::device
