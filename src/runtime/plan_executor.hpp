// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// PlanExecutor: one rank's part in a plan over memory of one kind. What DistAttention calls.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/rank_context.hpp"

namespace tangram {

class PlanExecutor {
 public:
  virtual ~PlanExecutor() = default;

  /// Run one pass, like DistAttention::forward and backward, checks included.
  virtual void forward(const DistForwardArgs& args, void* stream) = 0;
  virtual void backward(const DistBackwardArgs& args, void* stream) = 0;
  /// See DistAttention::met_peers and device_bytes.
  virtual bool met_peers() const { return true; }
  virtual int64_t device_bytes() const { return 0; }
  virtual int64_t forward_workspace_bytes() const { return 0; }
  virtual int64_t backward_workspace_bytes() const { return 0; }
};

/// Executor over host memory. `context` has plan, rank, communicator and backend, and must outlive the object.
std::unique_ptr<PlanExecutor> make_host_attention(RankContext& context);

}  // namespace tangram
