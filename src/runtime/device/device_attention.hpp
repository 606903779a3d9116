// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One rank's part in a plan, on its GPU: what programs do to device memory, and what DistAttention's options mean for
// them.
#pragma once

#include <memory>

#include "runtime/plan_executor.hpp"
#include "runtime/rank_context.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::device {

/// Throws InvalidArgument unless the backend supports the plan with these options. Throws NotAvailable for an overlap
/// or launch order that its programs do not have, and in a build without CUDA.
void check_attention(const RankContext& base, const DeviceCommunicator& communicator,
                     const DistAttentionOptions& options);

/// Collective. Over the memory of the current device, for what has been checked; `base` and `communicator` must outlive
/// the object. Throws NotAvailable, alike on all ranks, for a kSingleLaunch that cannot be.
std::unique_ptr<PlanExecutor> make_attention(RankContext& base, DeviceCommunicator& communicator,
                                             const DistAttentionOptions& options);

}  // namespace tangram::device
