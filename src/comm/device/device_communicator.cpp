// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/device_communicator.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "comm/copy_engine/copy_engine_communicator.hpp"
#include "comm/nccl/nccl_communicator.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

/// Alike on all ranks: a rank without a GPU makes all of them throw, instead of letting them wait for it.
void require_gpus(Communicator& control) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  float lacking = status == cudaSuccess && count > 0 ? 0 : 1;
  control.all_reduce({&lacking, 1}, ReduceOp::kMax, "make_device_communicator");
  if (lacking == 0) return;
  throw NotAvailable(fmt::format("make_device_communicator: every rank needs a GPU (got {} on rank {}: {})", count,
                                 control.rank(), cudaGetErrorString(status)));
}

}  // namespace

std::unique_ptr<DeviceCommunicator> make_device_communicator(Communicator& control,
                                                             const DeviceCommunicatorConfig& config) {
  require_gpus(control);
  switch (config.transport) {
    case DeviceTransport::kCopyEngine: return std::make_unique<comm::CopyEngineCommunicator>(control, config);
    case DeviceTransport::kNccl: return std::make_unique<comm::NcclCommunicator>(control, config);
  }
  throw InternalError("make_device_communicator: unknown transport");
}

}  // namespace tangram
