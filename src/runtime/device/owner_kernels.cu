// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>

#include "cuda/check.hpp"
#include "cuda/device_info.hpp"
#include "cuda/load_kernel.hpp"
#include "runtime/device/owner_kernels.hpp"
#include "runtime/device/row_vectors.cuh"

namespace tangram::device {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 16;  // of one row and head: eight elements each make a head of 128
constexpr int kRowsOfBlock = kThreads / kLanes;

constexpr int kSinkHeads = 8;  // neighbours in a row of lse: a sector of 32 bytes
constexpr int kSinkThreads = 1024;
constexpr int kSinkLanes = kSinkThreads / kSinkHeads;

/// One float for each row and head.
struct Floats {
  float* data;
  int64_t row_stride;
  int64_t head_stride;

  __device__ __forceinline__ float& at(int64_t row, int64_t head) const {
    return data[row * row_stride + head * head_stride];
  }
};

struct Sinks {
  const float* data;
  int64_t count;
  int32_t stride;
  bool per_row;

  __device__ __forceinline__ int64_t index(int64_t row, int64_t sink, int head) const {
    return ((per_row ? row * count : 0) + sink) * stride + head;
  }
};

struct DeltaParams {
  Rows out, dout;
  Floats delta;
  int64_t rows;
  int32_t heads, vectors;  // vectors: of eight elements, in one head
};

struct MergeParams {
  Rows out, other_out;
  Floats lse, other_lse;
  const int32_t* begins;  // null: to each row belongs the same row of the others, if there are any
  const int32_t* list;
  Sinks sinks;
  int64_t rows;
  int32_t heads, vectors;
};

struct SinkParams {
  Floats lse, delta;
  Sinks sinks;
  float* dsink;
  int64_t rows;
  int32_t heads;
};

/// The lanes that share this thread's row and head.
__device__ __forceinline__ uint32_t lanes_of_row() { return 0xffffu << (threadIdx.x / kLanes % 2 * kLanes); }

/// Calls `visit(row, head)` for the rows and heads of this group of lanes.
template <typename Visit>
__device__ __forceinline__ void for_each_row(int64_t rows, int32_t heads, const Visit& visit) {
  const int64_t step = int64_t{gridDim.x} * kRowsOfBlock;
  for (int64_t i = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kLanes; i < rows * heads; i += step) {
    const int64_t row = i / heads;
    visit(row, static_cast<int>(i - row * heads));
  }
}

__global__ void __launch_bounds__(kThreads) delta_kernel(const __grid_constant__ DeltaParams params) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for_each_row(params.rows, params.heads, [&](int64_t row, int head) {
    float sum = 0.0f;
    for (int vector = lane; vector < params.vectors; vector += kLanes) {
      float x[8], y[8];
      load_eight(x, params.out, params.out.at(row, head) + vector * 8);
      load_eight(y, params.dout, params.dout.at(row, head) + vector * 8);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += x[i] == 0.0f ? 0.0f : x[i] * y[i];
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(lanes_of_row(), sum, lanes);
    if (lane == 0) params.delta.at(row, head) = sum;
  });
}

/// The larger; NaN where one is.
__device__ __forceinline__ float larger(float a, float b) { return isnan(a) || a > b ? a : b; }

/// exp(lse - largest), where largest is not -inf.
__device__ __forceinline__ float weight_of(float lse, float largest) {
  return lse == -INFINITY ? 0.0f : expf(lse - largest);
}

__device__ __forceinline__ void add_weighted(float (&sum)[8], const Rows& rows, int64_t at, float weight) {
  float x[8];
  load_eight(x, rows, at);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += weight * x[i];
}

/// The parts of one row and head. All lanes find the same weights.
__device__ __forceinline__ void merge_row(const MergeParams& params, int64_t row, int head, int lane) {
  const bool listed = params.begins != nullptr;
  const int64_t begin = listed ? params.begins[row] : row;
  const int64_t end = listed ? params.begins[row + 1] : params.other_out.data == nullptr ? row : row + 1;
  const auto other_at = [&](int64_t i) { return listed ? int64_t{params.list[i]} : i; };
  const float own_lse = params.lse.at(row, head);
  float largest = own_lse;
  for (int64_t i = begin; i < end; ++i) largest = larger(largest, params.other_lse.at(other_at(i), head));
  for (int64_t s = 0; s < params.sinks.count; ++s) {
    largest = larger(largest, params.sinks.data[params.sinks.index(row, s, head)]);
  }
  if (largest == -INFINITY) return;  // out is 0 and stays so
  const float own_weight = weight_of(own_lse, largest);
  float total = own_weight;
  for (int64_t i = begin; i < end; ++i) total += weight_of(params.other_lse.at(other_at(i), head), largest);
  for (int64_t s = 0; s < params.sinks.count; ++s) {
    total += weight_of(params.sinks.data[params.sinks.index(row, s, head)], largest);
  }
  for (int vector = lane; vector < params.vectors; vector += kLanes) {
    const int64_t at = params.out.at(row, head) + vector * 8;
    float sum[8] = {};
    add_weighted(sum, params.out, at, own_weight);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t other = other_at(i);
      const float weight = weight_of(params.other_lse.at(other, head), largest);
      if (weight == 0.0f) continue;
      add_weighted(sum, params.other_out, params.other_out.at(other, head) + vector * 8, weight);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] /= total;
    store_eight(sum, params.out, at);
  }
  __syncwarp(lanes_of_row());  // all have read lse
  if (lane == 0) params.lse.at(row, head) = largest + logf(total);
}

__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeParams params) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for_each_row(params.rows, params.heads, [&](int64_t row, int head) { merge_row(params, row, head, lane); });
}

__device__ __forceinline__ float gradient_of(const SinkParams& params, int64_t row, int64_t sink, int head) {
  const float lse = params.lse.at(row, head);
  const float p = lse == -INFINITY ? 0.0f : expf(params.sinks.data[params.sinks.index(row, sink, head)] - lse);
  return p == 0.0f ? 0.0f : -p * params.delta.at(row, head);
}

/// One block for each sink and kSinkHeads heads; the lanes of a head take every kSinkLanes-th row.
__global__ void __launch_bounds__(kSinkThreads) shared_sink_kernel(const __grid_constant__ SinkParams params) {
  __shared__ double sums[kSinkLanes][kSinkHeads];
  const int column = static_cast<int>(threadIdx.x) % kSinkHeads, lane = static_cast<int>(threadIdx.x) / kSinkHeads;
  const int head = static_cast<int>(blockIdx.x) * kSinkHeads + column;
  const int64_t sink = blockIdx.y;
  double sum = 0;
  for (int64_t row = lane; head < params.heads && row < params.rows; row += kSinkLanes) {
    sum += gradient_of(params, row, sink, head);
  }
  sums[lane][column] = sum;
  for (int half = kSinkLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) sums[lane][column] += sums[lane + half][column];
  }
  if (lane == 0 && head < params.heads) {
    params.dsink[params.sinks.index(0, sink, head)] = static_cast<float>(sums[0][column]);
  }
}

__global__ void __launch_bounds__(kThreads) row_sink_kernel(const __grid_constant__ SinkParams params) {
  const int64_t of_row = params.sinks.count * params.heads;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < params.rows * of_row; i += step) {
    const int64_t row = i / of_row, in_row = i - row * of_row, sink = in_row / params.heads;
    const int head = static_cast<int>(in_row - sink * params.heads);
    params.dsink[params.sinks.index(row, sink, head)] = gradient_of(params, row, sink, head);
  }
}

__global__ void __launch_bounds__(kThreads) maxima_kernel(const __grid_constant__ ColumnMaxima params) {
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= params.columns) return;
  float most = -INFINITY;
  for (int64_t row = 0; row < params.rows; ++row) {
    const float value = params.from[row * params.stride + column];
    most = most < value ? value : most;
  }
  params.to[column] = most;
}

Floats floats_of(const ConstTensorView& view) {
  return {static_cast<float*>(const_cast<void*>(view.data)), view.row_stride, view.head_stride};
}
Sinks sinks_of(const SinkRows& of) {
  return {of.sink.data, of.sink.seqlen_sink, of.stride, of.sink.layout == SinkLayout::kSsh};
}

unsigned blocks_for(int64_t count, int64_t of_block) {
  return static_cast<unsigned>(
      std::min<int64_t>((count + of_block - 1) / of_block, cuda::info_of_current_device().memory_blocks()));
}

}  // namespace

void load_owner_kernels() {
  cuda::load_kernel<delta_kernel>();
  cuda::load_kernel<merge_kernel>();
  cuda::load_kernel<shared_sink_kernel>();
  cuda::load_kernel<row_sink_kernel>();
  cuda::load_kernel<maxima_kernel>();
}

void find_delta(const ConstTensorView& out, const ConstTensorView& dout, const TensorView& delta, cudaStream_t stream) {
  if (out.rows == 0) return;
  const DeltaParams params{rows_of(out), rows_of(dout), floats_of(delta), out.rows, out.heads, out.dim / 8};
  delta_kernel<<<blocks_for(out.rows * out.heads, kRowsOfBlock), kThreads, 0, stream>>>(params);
  cuda::check(cudaGetLastError(), "delta kernel launch");
}

void merge_rows(const RowMerge& merge, cudaStream_t stream) {
  const TensorView& out = merge.own.out;
  const bool has_others = merge.others.out.data != nullptr;
  if (out.rows == 0 || (!has_others && merge.sinks.sink.empty())) return;
  const MergeParams params{rows_of(out),
                           rows_of(merge.others.out),
                           floats_of(merge.own.lse),
                           floats_of(merge.others.lse),
                           merge.other_rows.begins,
                           merge.other_rows.rows,
                           sinks_of(merge.sinks),
                           out.rows,
                           out.heads,
                           out.dim / 8};
  merge_kernel<<<blocks_for(out.rows * out.heads, kRowsOfBlock), kThreads, 0, stream>>>(params);
  cuda::check(cudaGetLastError(), "merge kernel launch");
}

void find_dsink(const SinkGradient& of, cudaStream_t stream) {
  const SinkParams params{floats_of(of.lse), floats_of(of.delta), sinks_of(of.sinks),
                          of.dsink,          of.lse.rows,         of.lse.heads};
  const int64_t count = params.sinks.count;
  if (count == 0) return;
  if (!params.sinks.per_row) {
    const dim3 grid(static_cast<unsigned>((params.heads + kSinkHeads - 1) / kSinkHeads), static_cast<unsigned>(count));
    shared_sink_kernel<<<grid, kSinkThreads, 0, stream>>>(params);
  } else if (params.rows > 0) {
    row_sink_kernel<<<blocks_for(params.rows * count * params.heads, kThreads), kThreads, 0, stream>>>(params);
  }
  cuda::check(cudaGetLastError(), "sink gradient kernel launch");
}

void find_maxima(const ColumnMaxima& maxima, cudaStream_t stream) {
  if (maxima.columns == 0) return;
  maxima_kernel<<<static_cast<unsigned>((maxima.columns + kThreads - 1) / kThreads), kThreads, 0, stream>>>(maxima);
  cuda::check(cudaGetLastError(), "maxima kernel launch");
}

}  // namespace tangram::device
