// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The compiled kernels; host code picks one by its shape. All throw CudaError naming the kernel, and NotAvailable in a
// build that holds a sample of the kernels, for others.
#pragma once

#include <cuda_runtime_api.h>

#include "attn/sm80/backward/params.hpp"
#include "attn/sm80/forward/params.hpp"
#include "attn/sm80/shapes.hpp"
#include "tangram/dtype.hpp"

namespace tangram::sm80 {

/// Selects a compiled kernel.
struct Variant {
  DType dtype = DType::kBFloat16;
  int head_dim = 128;
  int head_dim_v = 128;
  bool softcap = false;
  SharedMemoryTier tier = SharedMemoryTier::kLarge;
};

/// Launch the kernels on `num_multiprocessors`.
void launch_forward(const Variant& variant, const ForwardParams& params, int num_multiprocessors, cudaStream_t stream);
/// `half`: 16-bit results are float16 instead of bfloat16.
void launch_combine(bool half, const ForwardParams& params, const CombineParams& combine, cudaStream_t stream);
void load_combine(bool half);
/// Sets `count` floats to minus infinity, in stream order.
void fill_minus_infinity(float* values, int count, cudaStream_t stream);

/// The kernels before, main and after of one backward call, the main one on at most so many multiprocessors.
void launch_backward(const Variant& variant, const backward::Params& params, const backward::PrePostParams& pre_post,
                     int num_multiprocessors, cudaStream_t stream);

/// Gradient of a sink from the row statistics that launch_backward() leaves: dsink = -sum over rows of exp(sink - lse)
/// * delta. Rows that see no key in this call may see some in another, so theirs is made of out, dout and lse, which
/// are final.
struct SinkParams {
  const float* sink;  ///< [num_sinks, num_heads_q], or a set of these for each row
  float* dsink;       ///< as sink
  const float* lse;
  int64_t seqlen_q;
  int32_t num_sinks;
  bool per_row;
  DType dtype;  ///< of the tensors
};
/// Before a kernel that may wait for keys, which launch_sink() comes behind.
void load_sink(DType dtype);
void launch_sink(const SinkParams& params, const backward::PrePostParams& pre_post, cudaStream_t stream);

// Of float32 tensors.
void launch_float32_forward(const Variant& variant, const ForwardParams& params, int num_multiprocessors,
                            cudaStream_t stream);
void launch_float32_backward(const Variant& variant, const backward::Params& params,
                             const backward::PrePostParams& pre_post, int num_multiprocessors, cudaStream_t stream);

// For each class of head dimensions, in a source of its own.
template <int kDimQk, int kDimV>
void launch_forward_class(const Variant& variant, const ForwardParams& params, int num_multiprocessors,
                          cudaStream_t stream);
template <int kDimQk, int kDimV>
void launch_backward_class(const Variant& variant, const backward::Params& params,
                           const backward::PrePostParams& pre_post, int num_multiprocessors, cudaStream_t stream);

}  // namespace tangram::sm80
