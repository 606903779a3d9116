// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/require.hpp"
#include "tangram/buffered_pass.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram {

std::unique_ptr<BufferedPass> DeviceCommunicator::make_buffered_pass(const BufferedPassSpec&) { return nullptr; }

std::string_view to_string(DeviceTransport transport) {
  switch (transport) {
    case DeviceTransport::kCopyEngine: return "copy_engine";
    case DeviceTransport::kNccl: return "nccl";
  }
  return "unknown";
}

DeviceTransport parse_device_transport(std::string_view name) {
  for (const DeviceTransport transport : {DeviceTransport::kCopyEngine, DeviceTransport::kNccl}) {
    if (name == to_string(transport)) return transport;
  }
  require(false, "parse_device_transport: must be copy_engine or nccl (got {})", name);
  return DeviceTransport::kCopyEngine;
}

}  // namespace tangram
