// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/slot.hpp"

#include <utility>

#include "core/require.hpp"

namespace tangram::gpu {

const GpuSlot& as_gpu_slot(const MaskSlot& slot) {
  const auto* own = dynamic_cast<const GpuSlot*>(&slot);
  require(own != nullptr, "AttnBackend: the slot must be of this backend (got another's)");
  return *own;
}

GpuSlot& as_gpu_slot(MaskSlot& slot) { return const_cast<GpuSlot&>(as_gpu_slot(std::as_const(slot))); }

bool may_be_sparse(const AttnBackwardArgs& args) {
  const CallOptions call = call_options(args);
  return call.plain && !call.deterministic;
}

void GpuSlot::install_device(const MaskData& /*data*/, cudaStream_t /*stream*/) {
  throw InvalidArgument("AttnBackend::install_device: needs a padded slot (got an exact one)");
}

const DeviceKeySources& GpuSlot::forward_sources() const {
  static const DeviceKeySources kNone;
  return kNone;
}

const DeviceKeySources& GpuSlot::backward_sources(bool /*deterministic*/) const { return GpuSlot::forward_sources(); }

}  // namespace tangram::gpu
