// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/device_attention.hpp"
#include "tangram/error.hpp"

namespace tangram::device {

void check_attention(const RankContext&, const DeviceCommunicator&, const DistAttentionOptions&) {
  throw NotAvailable("DistAttention: on GPUs needs a build with CUDA (configure with TANGRAM_CUDA=ON)");
}

std::unique_ptr<PlanExecutor> make_attention(RankContext&, DeviceCommunicator&, const DistAttentionOptions&) {
  return nullptr;  // what check_attention refuses
}

}  // namespace tangram::device
