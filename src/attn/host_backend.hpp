// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What backends of host memory share: slots, parts and head groups, so that each of them computes one mask.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tangram/attention.hpp"

namespace tangram {

/// Data that a HostBackend keeps of one mask.
class HostMask {
 public:
  virtual ~HostMask() = default;
  virtual int64_t host_bytes() const { return 0; }
};

/// A mask is prepared once, for both passes. What only backward passes need may be made by the first of them. Head
/// groups that see different cells are computed one after the other.
class HostBackend : public AttnBackend {
 public:
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override;
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity) const override;
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const override;
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream = nullptr) const override;
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream = nullptr) const override;

 protected:
  /// Throws InvalidArgument for slices that meet or lie outside, and for what the backend cannot do.
  virtual std::unique_ptr<HostMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape) const = 0;
  /// Makes now what backward_of() would make at its first call.
  virtual void index_backward(HostMask& /*mask*/) const {}
  /// `mask` is of prepare(). Throw InvalidArgument before anything is computed.
  virtual void forward_of(HostMask& mask, const AttnForwardArgs& args) const = 0;
  virtual void backward_of(HostMask& mask, const AttnBackwardArgs& args) const = 0;
};

}  // namespace tangram
