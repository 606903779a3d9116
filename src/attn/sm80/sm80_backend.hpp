// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention on NVIDIA GPUs of compute capability 8.0 and later, by instructions that they all have.
#pragma once

#include <string>

#include "attn/gpu/gpu_backend.hpp"
#include "tangram/attention.hpp"

namespace tangram {

/// Whether the kernels run on the current device: its name, or why not and what to use instead. Never throws.
struct Sm80Check {
  bool found = false;
  std::string text;
};
Sm80Check check_sm80();

/// bfloat16 and float16, head_dim and head_dim_v any multiples of 8 up to 256, any number of key heads that divides the
/// query heads. Tensors lie in the memory of the current device, 16-byte aligned, with strides that are multiples of 16
/// bytes. Calls put one kernel on the stream (one more with max_logits and for few tiles of long keys, whose parts are
/// combined; backward three, and one for dsink) and never wait. Given a workspace they never allocate; without one they
/// share that of the device (cuda::Workspace). Slots are exact; keys are there before a call, in k and v; a call has
/// one mask for all heads. Making the backend needs no GPU.
class Sm80Backend final : public gpu::GpuBackend {
 public:
  AttnCaps caps() const override;
  void check(const AttnShape& shape) const override;
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override;
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity = nullptr) const override;
  int64_t workspace_bytes(const MaskSlot& slot, AttnPass pass) const override;
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream = nullptr) const override;
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream = nullptr) const override;

 protected:
  schedule::KernelTable kernel_table(const AttnShape& shape) const override;
  void require_device() const override;
  void load_combine(const AttnShape& shape) const override;
};

}  // namespace tangram
