// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward pass over token indices, as Sm90Tokens calls it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "tangram/attn_shape.hpp"
#include "tangram/token_attention.hpp"

namespace tangram::sm90::token_backward {

/// Beyond what the forward pass asks of shapes; empty, or why not, as TokenAttention::refusal.
std::string refusal(const AttnShape& shape, int64_t topk);

/// Besides the counts, aligned to 256 bytes.
int64_t workspace_bytes(const AttnShape& shape, int64_t topk, bool deterministic);

/// Throws InvalidArgument for what these kernels do not take, as long as nothing is enqueued.
void check_taken(const AttnBackwardArgs& args);

/// Enqueues the kernels. Arguments must have been checked: check_tokens, check_taken, tensors laid out for TMA (16-byte
/// aligned, strides multiples of 16 bytes), and an accepted shape. `counts` [num_heads_kv, seqlen_q] as
/// tokens::enqueue_check leaves them, in front on the stream; kernels trust them and the entries that they cover.
/// `workspace`: workspace_bytes() of any content. Throws CudaError.
void enqueue(const AttnShape& shape, const TokenIndices& indices, const AttnBackwardArgs& args, const int32_t* counts,
             void* workspace, cudaStream_t stream);

}  // namespace tangram::sm90::token_backward
