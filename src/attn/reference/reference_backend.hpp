// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backend `reference`: dense attention in float64, for checking others. Every cell of the mask is asked for in turn.
#pragma once

#include "attn/thread_pool.hpp"
#include "attn/tokens/host_tokens.hpp"
#include "tangram/attention.hpp"

namespace tangram {

class ReferenceBackend final : public AttnBackend {
 public:
  /// `num_threads` as for ThreadPool.
  explicit ReferenceBackend(int num_threads = 0);

  std::string_view name() const override { return "reference"; }
  std::optional<TileShape> tile_shape(const AttnShape&) const override { return std::nullopt; }
  bool takes_delta() const override { return true; }
  const TokenAttention* token_attention() const override { return &tokens_; }
  std::unique_ptr<PreparedMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                        const TileList* tiles) const override;
  void forward(PreparedMask& mask, const AttnForwardArgs& args, void* stream) const override;
  void backward(PreparedMask& mask, const AttnBackwardArgs& args, void* stream) const override;

 private:
  mutable ThreadPool pool_;
  HostTokens tokens_{pool_};
};

}  // namespace tangram
