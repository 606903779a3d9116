// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/nccl_communicator.hpp"

#include "comm/device/pass_check.hpp"
#include "comm/nccl/nccl_pass.hpp"
#include "cuda/stream.hpp"

namespace tangram::comm {

std::shared_ptr<DevicePass> NcclCommunicator::prepare_pass(const DevicePassSpec& spec) {
  check();
  if (group_->agrees_later() && spec.agreed != nullptr) {
    require_valid(size(), spec);
    return std::make_shared<NcclPass>(group_, spec);
  }
  const auto* shared = pass_that_shares_recv_buffer<NcclPass>(control(), spec, *group_);
  check_pass_spec(control(), spec, shared == nullptr ? -1 : shared->number());
  return std::make_shared<NcclPass>(group_, spec);
}

void NcclCommunicator::all_reduce(float* device_values, int count, ReduceOp op, void* stream) {
  check_all_reduce(device_values, count, op);
  check();
  group_->all_reduce(device_values, count, op == ReduceOp::kMax, cuda::as_stream(stream));
}

}  // namespace tangram::comm
