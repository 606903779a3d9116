// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HostAttention: one rank's part in a plan, over host memory.
#pragma once

#include "plan/program/emit.hpp"
#include "runtime/host/host_runner.hpp"
#include "runtime/sanity.hpp"

namespace tangram {

class HostAttention {
 public:
  /// `context` has plan, rank, communicator and backend, and must outlive the object.
  explicit HostAttention(RankContext& context);

  void forward(const DistForwardArgs& args);
  void backward(const DistBackwardArgs& args);

 private:
  enum class Kind : int { kForward, kBackward, kBackwardKept };

  int64_t remote_kv_rows(AttnPass pass) const;
  /// Written anew for each call, in microseconds: what stayed would come to lie among the buffers of a pass, where it
  /// keeps the allocator from giving these back.
  HostProgram program(Kind kind, const CallShape& call);

  RankContext& context_;
  ProgramRunner::Masks masks_;
  ProgramCheck check_;
};

}  // namespace tangram
