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
/// NOTE [rows under way]: rows of k, v, dk and dv that no slice of the mask sees may belong to another stage that is
/// being received or sent at this moment. They are not read; with accumulate_dkv they are not written either.
class StagingBackend final : public AttnBackend {
 public:
  StagingBackend(std::unique_ptr<AttnBackend> backend, std::unique_ptr<DeviceMemory> memory);
  ~StagingBackend() override;

  std::string_view name() const override { return backend_->name(); }
  MemoryKind memory() const override { return MemoryKind::kHost; }
  std::optional<TileShape> tile_shape(const AttnShape& shape) const override { return backend_->tile_shape(shape); }
  std::unique_ptr<PreparedMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                        const TileList* tiles) const override;
  std::optional<TileShape> backward_tile_shape(const AttnShape& shape) const override {
    return backend_->backward_tile_shape(shape);
  }
  void prepare_backward(PreparedMask& mask, const TileList& transposed_tiles, BackwardCalls calls) const override;
  bool takes_delta() const override { return backend_->takes_delta(); }
  /// `stream` must be null: these calls have an order of their own.
  void forward(PreparedMask& mask, const AttnForwardArgs& args, void* stream = nullptr) const override;
  void backward(PreparedMask& mask, const AttnBackwardArgs& args, void* stream = nullptr) const override;

 private:
  class Buffers;

  std::unique_ptr<AttnBackend> backend_;
  std::unique_ptr<DeviceMemory> memory_;
  mutable std::mutex mutex_;  // of the buffers: calls with different masks may come from several threads
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace tangram
