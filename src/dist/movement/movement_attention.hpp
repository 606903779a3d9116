// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Both passes of a plan in which queries travel as well as keys: every rank computes what the plan gives it, for rows
// of its own and of others, and the owner of a row puts its parts together.
#pragma once

#include "dist/movement/movement_work.hpp"

namespace tangram {

/// NOTE [moved queries]: q rows of a stage arrive while the stage before computes, are computed in one call, and their
/// out and lse (dq) go back while the next stage computes. Parts that come back are added up apart from the owner's
/// own, by stage and then in rank order, and joined with it once, at the end: results do not depend on who came first.
/// Backends never see a sink: it enters at the owner, after the last part.
class MovementAttention {
 public:
  /// `context` must outlive the object. Throws InvalidArgument for a plan of another number of ranks than the
  /// communicator's, and for a backend that cannot take delta.
  explicit MovementAttention(RankContext& context);

  void forward(const DistForwardArgs& args);
  void backward(const DistBackwardArgs& args);

 private:
  class Forward;
  class Backward;

  RankContext& context_;
  int head_groups_ = 1;
  bool keeps_ = false;  // both passes fetch the same rows, and the plan says that forward keeps them
  MovementWork forward_;
  MovementWork backward_;
};

}  // namespace tangram
