// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the two padded slots share: ListBuffer and BlockBuffer.
#pragma once

#include <cstddef>
#include <memory>

#include "attn/gpu/slot.hpp"
#include "core/require.hpp"
#include "cuda/graph_lifetime.hpp"
#include "cuda/pinned_ring.hpp"

namespace tangram::gpu {

/// Holds one mask of its capacity after the other, where captured calls read them. Used by one call at a time.
class PaddedSlot : public GpuSlot {
 public:
  const MaskCapacity& capacity() const { return capacity_; }

  void check_forward(const char* function) const final { check_call(function, AttnPasses::kBackward); }
  /// Keep the lists as long as the graph lives that is captured on `stream`, if one is.
  void before_forward(cudaStream_t stream) const final { keep_while_graph_lives(stream); }
  void before_backward(const AttnBackwardArgs& /*args*/, cudaStream_t stream) const final {
    keep_while_graph_lives(stream);
  }
  using GpuSlot::backward_workspace_bytes;
  size_t backward_workspace_bytes(bool /*deterministic*/) const final { return backward_workspace_bytes(); }

 protected:
  PaddedSlot(const AttnShape& shape, const schedule::KernelTable& kernels, const MaskCapacity& capacity)
      : GpuSlot(shape, kernels), capacity_(capacity) {
    const MaskPart backward = capacity.deterministic ? MaskPart::kBackwardOrdered : MaskPart::kBackward;
    if (capacity.passes != AttnPasses::kBackward) add_parts(MaskPart::kForward);
    if (capacity.passes != AttnPasses::kForward) add_parts(backward);
  }

  virtual void keep_while_graph_lives(cudaStream_t stream) const = 0;
  /// Throws InvalidArgument, naming `function`, for a slot without a mask, or for the `other` pass alone, and for a
  /// mask that the GPU has refused.
  void check_call(const char* function, AttnPasses other) const {
    require(capacity_.passes != other, "{}: the MaskBuffer must be for this pass (got one for {} alone)", function,
            other == AttnPasses::kForward ? "forward" : "backward");
    require(is_set_, "{}: MaskBuffer::set() must come first (got none)", function);
    check_errors();
  }

  /// Enqueues a copy of what `write` leaves in host memory of `most_bytes`; it returns the number of bytes.
  template <class Write>
  void copy_from_host(void* to, size_t most_bytes, const Write& write, cudaStream_t stream) {
    require(!cuda::is_captured(stream),
            "MaskBuffer::set: the stream must not be being captured, masks are set between replays (got one that is)");
    make_ring(most_bytes);
    const size_t bytes = write(ring_->next());
    ring_->copy_to(to, bytes, stream);
    is_set_ = true;
  }
  void make_ring(size_t most_bytes) {
    if (ring_ == nullptr) ring_ = std::make_unique<cuda::PinnedRing>(most_bytes);
    ring_bytes_ = most_bytes * cuda::PinnedRing::kBlocks;
  }
  size_t ring_bytes() const { return ring_bytes_; }
  void set_by_device() { is_set_ = true; }

 private:
  MaskCapacity capacity_;
  std::unique_ptr<cuda::PinnedRing> ring_;  // null before it is wanted
  size_t ring_bytes_ = 0;
  bool is_set_ = false;
};

}  // namespace tangram::gpu
