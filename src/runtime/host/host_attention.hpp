// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HostAttention: one rank's part in a plan, over host memory.
#pragma once

#include "plan/program/emit.hpp"
#include "runtime/host/host_runner.hpp"
#include "runtime/plan_executor.hpp"
#include "runtime/sanity.hpp"

namespace tangram {

class HostAttention final : public PlanExecutor {
 public:
  /// `context` has plan, rank, communicator and backend, and must outlive the object.
  explicit HostAttention(RankContext& context);

  void forward(const DistForwardArgs& args, void* stream) override;
  void backward(const DistBackwardArgs& args, void* stream) override;

 private:
  enum class Kind : int { kForward, kBackward, kBackwardKept };

  /// Whether the group has an operation in such a pass, in which this rank can refuse.
  bool communicates(const DistForwardArgs& args) const;
  bool communicates(const DistBackwardArgs& args) const;
  void run(const DistForwardArgs& args);
  void run(const DistBackwardArgs& args);
  /// Checks the arguments, then runs the pass; the peers of a rank that cannot go on are told.
  template <class Args>
  void run_checked(const Args& args);

  int64_t remote_kv_rows(AttnPass pass) const;
  /// Written anew for each call, in microseconds: what stayed would come to lie among the buffers of a pass, where it
  /// keeps the allocator from giving these back.
  HostProgram program(Kind kind, const CallShape& call);

  RankContext& context_;
  ProgramRunner::Masks masks_;
  ProgramCheck check_;
};

}  // namespace tangram
