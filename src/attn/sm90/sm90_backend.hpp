// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention on Hopper GPUs (compute capability 9.0).
#pragma once

#include <memory>
#include <span>

#include "attn/sm90/hopper_check.hpp"
#include "attn/sm90/tokens/sm90_tokens.hpp"
#include "tangram/attention.hpp"

namespace tangram {

/// bfloat16 and float16, head_dim and head_dim_v any multiples of 8 up to 256, any number of key heads that divides the
/// query heads. Tensors lie in the memory of the current device, 16-byte aligned, with strides that are multiples of 16
/// bytes. Calls put one kernel on the stream (one more with max_logits and for few tiles of long keys, whose parts are
/// merged; backward three, and one for dsink) and never wait. Given a workspace they never allocate; without one they
/// share that of the device (cuda::Workspace). They can be captured in a CUDA graph. A slot holds tile lists and
/// nothing else; it belongs to the device that was current in make_slot(), which throws NotAvailable where that is not
/// a Hopper GPU. Making the backend needs no GPU.
class Sm90Backend final : public AttnBackend {
 public:
  AttnCaps caps() const override;
  void check(const AttnShape& shape) const override;
  MaskPart backward_part(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                         const CallOptions& call) const override;
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override;
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity = nullptr) const override;
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream = nullptr) const override;
  void install_device(MaskSlot& slot, const MaskData& data, void* stream) const override;
  int64_t workspace_bytes(const MaskSlot& slot, AttnPass pass) const override;
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream = nullptr) const override;
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream = nullptr) const override;
  const TokenAttention* token_attention() const override { return &tokens_; }

 private:
  sm90::Sm90Tokens tokens_;
};

}  // namespace tangram
