// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/slot.hpp"

#include <utility>

#include "core/require.hpp"

namespace tangram::sm90 {

const Sm90Slot& as_sm90(const MaskSlot& slot) {
  const auto* own = dynamic_cast<const Sm90Slot*>(&slot);
  require(own != nullptr, "Sm90Backend: the slot must be of this backend (got another's)");
  return *own;
}

Sm90Slot& as_sm90(MaskSlot& slot) { return const_cast<Sm90Slot&>(as_sm90(std::as_const(slot))); }

void Sm90Slot::install_device(const MaskData& /*data*/, cudaStream_t /*stream*/) {
  throw InvalidArgument("Sm90Backend::install_device: needs a padded slot (got an exact one)");
}

const DeviceKeySources& Sm90Slot::forward_sources() const {
  static const DeviceKeySources kNone;
  return kNone;
}

const DeviceKeySources& Sm90Slot::backward_sources(bool /*deterministic*/) const { return Sm90Slot::forward_sources(); }

}  // namespace tangram::sm90
