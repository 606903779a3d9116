// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The compiled backward kernels; host code picks one by its shape.
#pragma once

#include <cuda_runtime_api.h>

#include "attn/sm90/backward/params.hpp"

namespace tangram::sm90::backward {

/// Selects a compiled kernel.
struct Variant {
  bool half = false;   ///< float16 instead of bfloat16
  int head_dim = 128;  ///< with head_dim_v, of a shape class
  int head_dim_v = 128;
  bool softcap = false;
  bool deterministic = false;
};

/// Launches the three kernels of one backward call, the middle one with `num_ctas` persistent CTAs. Throws CudaError
/// naming the kernel.
void launch(const Variant& variant, const Params& params, const PrePostParams& pre_post, int num_ctas,
            cudaStream_t stream);

/// Gradient of a sink from the row statistics that launch() leaves: dsink = -sum over rows of exp(sink - lse) * delta.
/// Rows that see no key in this call may see some in another, so theirs is made of out, dout and lse, which are final.
struct SinkParams {
  const float* sink;  ///< [num_sinks, num_heads_q], or a set of these for each row
  float* dsink;       ///< as sink
  const float* stats;
  const QueryTile* q_tiles;         ///< as in Params
  const uint64_t* covered_queries;  ///< null, or as in Params: other rows have no statistics
  const void* out;
  const void* dout;
  const float* lse;
  const float* delta;  ///< null, or in place of out and dout
  int64_t out_row_stride, out_head_stride;
  int64_t dout_row_stride, dout_head_stride;
  int64_t seqlen_q;
  int32_t num_q_tiles;
  int32_t num_heads_q;
  int32_t num_sinks;
  int32_t head_dim_v;
  float lse_log2_factor;  ///< from what the row statistics hold to lse * log2(e)
  bool per_row;
  bool half;  ///< float16 instead of bfloat16
  bool out_float32;
  int32_t heads_per_mask;  ///< as in PrePostParams
};
void launch_sink(const SinkParams& params, cudaStream_t stream);
/// Loads the kernels of launch_sink.
void load_sink();

}  // namespace tangram::sm90::backward
