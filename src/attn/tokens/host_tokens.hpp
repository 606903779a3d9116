// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Token indices in host memory, for the backends there: list by list in float64, for checking others and for small
// problems.
#pragma once

#include "attn/thread_pool.hpp"
#include "tangram/token_attention.hpp"

namespace tangram {

class HostTokens final : public TokenAttention {
 public:
  /// `pool` must outlive the object.
  explicit HostTokens(ThreadPool& pool) : pool_(pool) {}

  std::string refusal(const AttnShape& shape, int64_t topk) const override;
  void forward(const AttnShape& shape, const TokenIndices& indices, const AttnForwardArgs& args,
               void* stream) const override;
  /// Each sum has one order.
  void backward(const AttnShape& shape, const TokenIndices& indices, const AttnBackwardArgs& args,
                void* stream) const override;

 private:
  ThreadPool& pool_;
};

}  // namespace tangram
