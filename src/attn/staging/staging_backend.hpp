// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A backend on a device, as one that works on host memory: tensors are copied there and results back around each call.
// For the command line, for checks and for ranks that are threads; what trains keeps its tensors on the device.
#pragma once

#include <memory>
#include <mutex>

#include "attn/staging/device_memory.hpp"
#include "tangram/attention.hpp"

namespace tangram {

/// Calls return when their results are in host memory. Views may have any strides. Device buffers are kept from call to
/// call and grow as needed.
///
/// NOTE [rows under way]: rows of k, v, dk and dv that no slice of the mask sees may belong to another stage. That
/// stage may be receiving or sending them at this moment. They are not read; with accumulate_dkv they are not written
/// either.
class StagingBackend final : public AttnBackend {
 public:
  StagingBackend(std::unique_ptr<AttnBackend> backend, std::unique_ptr<DeviceMemory> memory);
  ~StagingBackend() override;

  AttnCaps caps() const override;
  void check(const AttnShape& shape) const override { backend_->check(shape); }
  MaskPart backward_part(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                         const CallOptions& call) const override {
    return backend_->backward_part(masks, shape, call);
  }
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override;
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity) const override;
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const override;
  /// `stream` must be null: these calls have an order of their own.
  void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream = nullptr) const override;
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream = nullptr) const override;

 private:
  class Buffers;

  std::unique_ptr<AttnBackend> backend_;
  std::unique_ptr<DeviceMemory> memory_;
  mutable std::mutex mutex_;  // of the buffers: calls with different masks may come from several threads
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace tangram
