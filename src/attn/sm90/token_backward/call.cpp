// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/token_backward/call.hpp"

#include "tangram/error.hpp"

namespace tangram::sm90::token_backward {

std::string refusal(const AttnShape&, int64_t) { return "a forward pass alone, no kernel computes gradients yet"; }

int64_t workspace_bytes(const AttnShape&, int64_t) { return 0; }

void enqueue(const AttnShape& shape, const TokenIndices& indices, const AttnBackwardArgs&, const int32_t*, void*,
             cudaStream_t) {
  throw InvalidArgument("Sm90Tokens::backward: needs " + refusal(shape, indices.topk));
}

}  // namespace tangram::sm90::token_backward
