// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels that build lists of masks.
#pragma once

#include <cuda_runtime_api.h>

#include "attn/gpu/builder/params.hpp"

namespace tangram::gpu::builder {

/// Builds the image of packed documents, in stream order. Throws CudaError.
void launch_build(const TurnBuild& build, const Documents& documents, cudaStream_t stream);
/// Enqueues the build of lists of block-sparse masks.
void launch_build(const TurnBuild& build, const Blocks& blocks, cudaStream_t stream);

/// Enqueues the build of lists of block-sparse masks for kernels that gather.
void launch_build(const BlockBuild& build, const BlockLists& lists, cudaStream_t stream);

/// Enqueues the build of lists of typed ranges.
void launch_build(const SortBuild& build, const Ranges& ranges, cudaStream_t stream);

}  // namespace tangram::gpu::builder
