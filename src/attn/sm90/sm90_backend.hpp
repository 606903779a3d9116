// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention on Hopper GPUs (compute capability 9.0).
#pragma once

#include "attn/gpu/gpu_backend.hpp"
#include "attn/sm90/hopper_check.hpp"
#include "attn/sm90/tokens/sm90_tokens.hpp"
#include "tangram/attention.hpp"

namespace tangram {

/// bfloat16 and float16, head_dim and head_dim_v any multiples of 8 up to 256, any number of key heads that divides the
/// query heads. Tensors lie in the memory of the current device, 16-byte aligned, with strides that are multiples of 16
/// bytes. Calls never wait. A forward call puts one kernel on the stream, one more with max_logits, and one more to
/// combine split-KV parts. A backward call puts three, and one for dsink. Given a workspace they never allocate;
/// without one they share that of the device (cuda::Workspace). They can be captured in a CUDA graph. A slot holds tile
/// lists and nothing else. Making the backend needs no GPU.
class Sm90Backend final : public gpu::GpuBackend {
 public:
  AttnCaps caps() const override;
  void check(const AttnShape& shape) const override;
  int64_t workspace_bytes(const MaskSlot& slot, AttnPass pass) const override;
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream = nullptr) const override;
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream = nullptr) const override;
  const TokenAttention* token_attention() const override { return &tokens_; }

  schedule::KernelTable kernel_table(const AttnShape& shape) const override;

 protected:
  void require_device() const override { require_hopper(); }
  void load_combine(const AttnShape& shape) const override;

 private:
  sm90::Sm90Tokens tokens_;
};

}  // namespace tangram
