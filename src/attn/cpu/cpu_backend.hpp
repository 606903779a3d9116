// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backend `cpu`: tiled, vectorised and threaded attention over slices; docs/design/attention_cpu.md.
#pragma once

#include <string>
#include <vector>

#include "attn/cpu/kernels.hpp"
#include "attn/host_backend.hpp"
#include "attn/thread_pool.hpp"
#include "attn/tokens/host_tokens.hpp"

namespace tangram {

/// Results do not depend on the number of threads: every sum has one fixed order.
class CpuBackend final : public HostBackend {
 public:
  /// `num_threads` as for ThreadPool. `isa` is one of `available_isas()`, or empty: TANGRAM_CPU_ISA or the best.
  explicit CpuBackend(int num_threads = 0, const std::string& isa = {});

  /// The instruction sets that this machine and this build have, best first.
  static std::vector<std::string> available_isas();

  AttnCaps caps() const override { return {.name = "cpu", .delta = true, .head_masks = true}; }
  std::string_view isa() const { return kernels_.name; }
  int num_threads() const { return pool_.num_threads(); }
  const TokenAttention* token_attention() const override { return &tokens_; }

 protected:
  std::unique_ptr<HostMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape) const override;
  void index_backward(HostMask& mask) const override;
  void forward_of(HostMask& mask, const AttnForwardArgs& args) const override;
  void backward_of(HostMask& mask, const AttnBackwardArgs& args) const override;

 private:
  const cpu::Kernels& kernels_;
  mutable ThreadPool pool_;
  HostTokens tokens_{pool_};
};

}  // namespace tangram
