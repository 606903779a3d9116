// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What backends of GPU kernels share: from masks to lists, and slots that hold them. A backend adds a table of its
// kernels, checks, and its calls.
#pragma once

#include <memory>
#include <span>

#include "schedule/kernel_table.hpp"
#include "tangram/attention.hpp"

namespace tangram::gpu {

/// Slots belong to the device that was current in make_slot(), which throws NotAvailable where that is none of the
/// backend's.
class GpuBackend : public AttnBackend {
 public:
  MaskPart backward_part(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                         const CallOptions& call) const override;
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override;
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity = nullptr) const override;
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream = nullptr) const override;
  void install_device(MaskSlot& slot, const MaskData& data, void* stream) const override;

  /// Tile shapes and kernels for a shape that check() accepts.
  virtual schedule::KernelTable kernel_table(const AttnShape& shape) const = 0;

 protected:
  /// Throws NotAvailable unless kernels run on the current device.
  virtual void require_device() const = 0;
  /// Loads the kernel that joins work tiles in parts (KernelTable::splits_kv), for calls not to wait for it.
  virtual void load_combine(const AttnShape& /*shape*/) const {}
};

}  // namespace tangram::gpu
