// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Looks at lists of token indices before kernels trust them, and tells the host what it refuses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tangram/attn_shape.hpp"
#include "tangram/token_attention.hpp"

namespace tangram::sm90::tokens {

/// Enqueues the check. `counts` [num_heads_kv, seqlen_q] receives the number of entries to walk of each list, up to the
/// last that names a key. It is 0 for lists that name none or are refused. Entries before that are -1 or a row of k,
/// each row once. Throws CudaError.
void enqueue_check(const AttnShape& shape, const TokenIndices& indices, int32_t* counts, cudaStream_t stream);

/// Throws InvalidArgument, beginning with `function`, for lists that the current device has refused, once.
void throw_refused(const char* function);

}  // namespace tangram::sm90::tokens
