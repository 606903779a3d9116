// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the tables of a plan in which queries move say of a pass: which calls a rank makes, and what moves when.
#pragma once

#include <vector>

#include "tangram/plan.hpp"

namespace tangram {

/// One call of attention: query rows of one head group, of the own shard or fetched, against the K/V buffer.
struct MovementCall {
  size_t stage = 0;
  bool fetched = false;
  int group = 0;
  Range rows;  // of the shard by groups, or of the fetched rows
  std::vector<AttnSlice> slices;
};

/// Stage by stage. Every own row is in a call of stage 0, and every fetched row in a call of the stage that fetches it.
/// So all results are written.
std::vector<MovementCall> movement_calls(const Plan& plan, const MovementRank& rank);

/// A stage as all ranks see it.
struct MovementStep {
  bool moves_q = false;  // some rank fetches queries (keys), so all take part
  bool moves_kv = false;
  /// Stages whose K/V rows no rank uses after this one: their dk and dv can leave.
  std::vector<size_t> complete_kv;
};

/// `pass`: the tables of all ranks.
std::vector<MovementStep> movement_steps(const std::vector<MovementRank>& pass);

}  // namespace tangram
