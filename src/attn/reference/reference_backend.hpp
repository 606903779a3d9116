// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backend `reference`: dense attention in float64, for checking others. Every cell of the mask is asked for in turn.
#pragma once

#include "attn/host_backend.hpp"
#include "attn/thread_pool.hpp"
#include "attn/tokens/host_tokens.hpp"

namespace tangram {

class ReferenceBackend final : public HostBackend {
 public:
  /// `num_threads` as for ThreadPool.
  explicit ReferenceBackend(int num_threads = 0);

  AttnCaps caps() const override { return {.name = "reference", .delta = true, .head_masks = true}; }
  const TokenAttention* token_attention() const override { return &tokens_; }

 protected:
  std::unique_ptr<HostMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape) const override;
  void forward_of(HostMask& mask, const AttnForwardArgs& args) const override;
  void backward_of(HostMask& mask, const AttnBackwardArgs& args) const override;

 private:
  mutable ThreadPool pool_;
  HostTokens tokens_{pool_};
};

}  // namespace tangram
