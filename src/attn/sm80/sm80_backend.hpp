// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention on NVIDIA GPUs of compute capability 8.0 and later, by instructions that they all have.
#pragma once

#include <string>

#include "attn/gpu/gpu_backend.hpp"
#include "attn/sm80/shapes.hpp"
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
/// bytes. Calls never wait. A forward call puts one kernel on the stream, one more with max_logits, and one more to
/// combine split-KV parts. A backward call puts three, and one for dsink. Given a workspace they never allocate;
/// without one they share that of the device (cuda::Workspace). They can be captured in a CUDA graph. Making the
/// backend needs no GPU; where there is one, the backend is for devices with as much shared memory as the current one.
class Sm80Backend final : public gpu::GpuBackend {
 public:
  Sm80Backend();

  AttnCaps caps() const override;
  void check(const AttnShape& shape) const override;
  int64_t workspace_bytes(const MaskSlot& slot, AttnPass pass) const override;
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream = nullptr) const override;
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream = nullptr) const override;
  schedule::KernelTable kernel_table(const AttnShape& shape) const override;

 protected:
  void require_device() const override;
  void load_combine(const AttnShape& shape) const override;

 private:
  sm80::SharedMemoryTier tier_ = sm80::SharedMemoryTier::kLarge;
};

}  // namespace tangram
