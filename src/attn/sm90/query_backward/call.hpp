// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backward calls of the kernels for gathered keys.
#pragma once

#include <cuda_runtime_api.h>

#include "attn/gpu/slot.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90::query_backward {

/// Enqueues the call, whose arguments have been checked, in a workspace as gpu::place_sparse() places it.
void enqueue(const gpu::GpuSlot& slot, const AttnBackwardArgs& args, void* workspace, cudaStream_t stream);

}  // namespace tangram::sm90::query_backward
