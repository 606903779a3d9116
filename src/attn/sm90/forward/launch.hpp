// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The compiled forward kernels, one function for each; host code picks one by its shape.
#pragma once

#include <cuda_runtime_api.h>

#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/forward/params.hpp"

namespace tangram::sm90 {

/// Selects a compiled kernel.
struct ForwardVariant {
  bool half = false;   ///< float16 instead of bfloat16
  int head_dim = 128;  ///< with head_dim_v, of a shape class
  int head_dim_v = 128;
  bool softcap = false;
  bool many = false;       ///< work tiles of ForwardWorkTiles::kMany, where a class has them
  bool parts = false;      ///< work tiles are parts of query tiles, to be merged
  bool any_pack = false;   ///< the query heads of a work tile are no power of two
  bool many_runs = false;  ///< work tiles have many runs: a kernel that fetches them ahead, where there is one
  bool aligned = false;    ///< of gathered lists: work tiles of ForwardWorkTiles::kAligned
};

/// Launches the variant with `num_ctas` persistent CTAs. Throws CudaError naming the kernel.
void launch_forward(const ForwardVariant& variant, const ForwardParams& params, int num_ctas, cudaStream_t stream);

/// Launches the kernel for lists with gathered runs, without split-KV, for head dims whose class gathers.
void launch_gathered(const ForwardVariant& variant, const GatheredParams& params, int num_ctas, cudaStream_t stream);

/// Loads the kernel of launch_merge(). Otherwise its first launch would wait for the kernel before it, and so would the
/// calling thread. That kernel may need something from this thread (keys that the host is to send). Throws CudaError.
void load_merge(bool half, int head_dim, int head_dim_v);

/// Combines the split-KV parts of query tiles into out and lse of `params`, in the order of the parts. Sinks and the
/// earlier part that it continues are included. To follow the launch of the variant with parts. Throws CudaError naming
/// the kernel.
void launch_merge(const ForwardVariant& variant, const ForwardParams& params, const MergeParams& merge,
                  cudaStream_t stream);

}  // namespace tangram::sm90
