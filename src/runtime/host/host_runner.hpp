// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Runs programs over host memory: transfers by a Communicator, regions that live from their first use to their last.
#pragma once

#include <string>
#include <vector>

#include "plan/program/memory.hpp"
#include "runtime/rank_context.hpp"
#include "runtime/runner.hpp"

namespace tangram {

/// Tensors of a cast that move as one collective operation: neighbours with the same exchange and name.
struct HostCast {
  size_t first_item = 0;
  size_t num_items = 0;
  std::string label;
};

/// A program, and what follows from it for every run.
struct HostProgram {
  explicit HostProgram(Program of_rank);

  Program program;
  RegionLives lives;
  std::vector<std::vector<HostCast>> casts;  ///< by Program::casts
};

/// Runs the program on `context`'s communicator and backend and records what it does there. `held`: the regions that
/// may be kept, in their order, as another pass left them, or null. `keep`: where they go after the pass, or null:
/// nowhere.
bool run_on_host(RankContext& context, const HostProgram& program, const ProgramArguments& arguments,
                 const ProgramRunner::Masks& masks, const std::vector<HostTensor>* held, std::vector<HostTensor>* keep);

}  // namespace tangram
