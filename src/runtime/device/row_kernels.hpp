// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Row kernels of DistAttention in GPU memory. They copy own rows into the K/V buffer, round float32 sums, add own
// gradients to received ones, and copy single float32 values that lie in columns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "runtime/runner.hpp"

namespace tangram::device {

/// One tensor of a row kernel, for i in [0, num_rows). Row `to[i]` of `result` becomes row `from[i]` of `source` plus
/// row `add_from[i]` of `addend`, summed in float32 and rounded once. A tensor without memory stands for zeros, a null
/// map for i itself, a negative entry of `add_from` for a row of zeros. With `add_begins` there are several addends:
/// the rows `add_from[add_begins[i]]` to `add_from[add_begins[i + 1] - 1]`, added up first. Maps lie in device memory.
struct RowJob {
  ConstTensorView source;
  ConstTensorView addend;
  TensorView result;
  const int32_t* from = nullptr;
  const int32_t* add_from = nullptr;
  const int32_t* to = nullptr;
  int64_t num_rows = 0;
  const int32_t* add_begins = nullptr;  ///< [num_rows + 1]
};

/// At most this many jobs in one launch.
inline constexpr int kMaxRowJobs = 16;

/// Runs all jobs in one kernel. Rows must be 16-byte aligned, with strides that are multiples of 16 bytes and a dim
/// that is a multiple of 8. Heads and dim are equal in a job. Jobs without rows cost nothing.
void run_row_jobs(std::span<const RowJob> jobs, cudaStream_t stream);

/// Runs all copies, which do not depend on each other, in as few kernels as parameters allow.
void copy_floats(std::span<const FloatCopy> copies, cudaStream_t stream);

/// Before anything that waits for other ranks is on a stream of the current device: see cuda/load_kernel.hpp.
void load_row_kernels();

/// Multiplies `count` values by `factor`.
void scale_values(float* values, int64_t count, float factor, cudaStream_t stream);

}  // namespace tangram::device
