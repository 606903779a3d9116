// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/nccl_communicator.hpp"

#include <fmt/format.h>

#include "comm/device/pass_check.hpp"
#include "comm/nccl/nccl_pass.hpp"
#include "core/require.hpp"

namespace tangram::comm {

std::shared_ptr<DevicePass> NcclCommunicator::prepare_pass(const DevicePassSpec& spec) {
  check();
  const auto* shared = dynamic_cast<const NcclPass*>(spec.landing_of.get());
  if (spec.landing_of != nullptr && (shared == nullptr || !shared->shares_landing(*group_, spec.landing))) {
    const std::string reason = fmt::format(
        "prepare_pass '{}': landing_of must be a pass of this communicator with equal landing tensors", spec.label);
    control().refuse(reason);
    require(false, "{}", reason);
  }
  check_pass_spec(control(), spec, shared == nullptr ? -1 : shared->number());
  return std::make_shared<NcclPass>(group_, spec);
}

void NcclCommunicator::all_reduce(float* device_values, int count, ReduceOp op, void* stream) {
  require(device_values != nullptr && count >= 1 && count <= kMaxReduceValues,
          "all_reduce: needs 1 to {} values on the device (got {})", kMaxReduceValues, count);
  require(op == ReduceOp::kSum || op == ReduceOp::kMax, "all_reduce: op must be kSum or kMax (got {})",
          static_cast<int>(op));
  check();
  group_->all_reduce(device_values, count, op == ReduceOp::kMax, static_cast<cudaStream_t>(stream));
}

}  // namespace tangram::comm
