// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One rank's part in a pass of a movement plan as its executor needs it: the tables, the calls of each stage with what
// the backend prepared for them, and when gradients of fetched keys are complete.
#pragma once

#include <memory>
#include <vector>

#include "dist/rank_context.hpp"

namespace tangram {

/// One call of the backend: query rows of one head group, of the own shard or fetched, against the K/V buffer.
struct MovementCall {
  bool fetched = false;
  int group = 0;
  Range rows;  // of the shard by groups, or of the buffer of remote queries
  std::unique_ptr<PreparedMask> prepared;
};

struct MovementStep {
  bool moves_q = false;  // some rank fetches queries (keys), so all take part
  bool moves_kv = false;
  std::vector<MovementCall> calls;
  /// Stages whose K/V rows no rank uses after this one: their dk and dv can leave.
  std::vector<size_t> complete_kv;
};

struct MovementWork {
  const MovementRank* tables = nullptr;
  std::vector<KvSegment> segments;  // of the K/V buffer
  std::vector<MovementStep> steps;
  bool lends_q = false;  // other ranks compute for rows of this one
  bool lends_kv = false;
};

/// `pass`, [cp_size], must outlive the result. Every own row is in a call of stage 0, every fetched row in one of the
/// stage that fetches it, so that all results are written.
MovementWork make_movement_work(const RankContext& context, const std::vector<MovementRank>& pass, int head_groups);

}  // namespace tangram
