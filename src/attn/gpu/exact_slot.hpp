// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A slot that holds lists as large as they are, in device memory of their own (NOTE [list memory]).
#pragma once

#include <cstdint>
#include <memory>

#include "attn/gpu/metadata.hpp"
#include "attn/gpu/slot.hpp"
#include "attn/gpu/sparse_list.hpp"
#include "attn/gpu/work_list.hpp"
#include "cuda/packed_arrays.hpp"

namespace tangram::gpu {

class ExactSlot final : public GpuSlot {
 public:
  using GpuSlot::GpuSlot;

  void install(std::unique_ptr<MaskMetadata> metadata, cudaStream_t stream) override;

  void check_forward(const char* function) const override;
  void check_backward(const char* function, const AttnBackwardArgs& args) const override;
  void before_forward(cudaStream_t stream) const override;
  void before_backward(const AttnBackwardArgs& args, cudaStream_t stream) const override;

  ForwardView forward_view() const override { return forward_->view; }
  const DeviceKeySources& forward_sources() const override { return forward_->sources; }

  bool is_sparse(const AttnBackwardArgs& args) const override { return sparse_ != nullptr && may_be_sparse(args); }
  SparseView sparse_view() const override { return sparse_->view(); }
  BackwardView backward_view(bool deterministic, void* workspace) const override;
  const DeviceKeySources& backward_sources(bool deterministic) const override;
  size_t backward_workspace_bytes(bool deterministic) const override;
  size_t backward_workspace_bytes() const override;

  int64_t device_bytes() const override;

 private:
  /// The copy of both is enqueued on construction.
  struct Forward {
    Forward(const ForwardMetadata& metadata, const AttnShape& shape, const schedule::KernelTable& kernels);
    cuda::PackedArrays arrays;
    ForwardView view;
    DeviceKeySources sources;
  };
  struct Backward {
    Backward(const BackwardMetadata& metadata, const AttnShape& shape, const schedule::KernelTable& kernels)
        : lists(metadata.work, shape, kernels), sources(metadata.sources) {}
    DeviceWorkList lists;
    DeviceKeySources sources;
  };
  const Backward* backward_of(bool deterministic) const { return (deterministic ? ordered_ : backward_).get(); }

  std::unique_ptr<const Forward> forward_;
  std::shared_ptr<const Backward> backward_, ordered_;  // one object where a list is of both
  std::unique_ptr<const DeviceSparseList> sparse_;
};

}  // namespace tangram::gpu
