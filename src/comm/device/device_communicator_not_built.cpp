// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/device_communicator.hpp"
#include "tangram/error.hpp"

namespace tangram {

std::unique_ptr<DeviceCommunicator> make_device_communicator(Communicator&, const DeviceCommunicatorConfig&) {
  throw NotAvailable("make_device_communicator: needs a build with CUDA (configure with TANGRAM_CUDA=ON)");
}

cuda::Workspace& DeviceCommunicator::workspace() {
  throw NotAvailable("DeviceCommunicator::workspace: needs a build with CUDA (configure with TANGRAM_CUDA=ON)");
}

}  // namespace tangram
