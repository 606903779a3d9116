// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Token indices on Hopper GPUs.
#pragma once

#include "tangram/token_attention.hpp"

namespace tangram::sm90 {

/// bfloat16 and float16, head_dim and head_dim_v 128, any number of query heads for each K/V head: up to 128 are
/// computed together. Tensors as Sm90Backend wants them.
class Sm90Tokens final : public TokenAttention {
 public:
  std::string refusal(const AttnShape& shape, int64_t topk) const override;
  int64_t forward_workspace_bytes(const AttnShape& shape, int64_t topk) const override;
  int64_t backward_workspace_bytes(const AttnShape& shape, int64_t topk, bool deterministic) const override;
  void forward(const AttnShape& shape, const TokenIndices& indices, const AttnForwardArgs& args,
               void* stream) const override;
  void backward(const AttnShape& shape, const TokenIndices& indices, const AttnBackwardArgs& args,
                void* stream) const override;
  void check_errors() const override;
};

}  // namespace tangram::sm90
