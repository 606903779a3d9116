// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/clock/stage_time.hpp"

#include <algorithm>
#include <ranges>

namespace tangram {

namespace {

constexpr int kThere = 0, kBack = 1;  // links: one carries rows, one results
constexpr int kBetweenNodes = 2;      // added to a link's number

// The cast for which the program waits last, of those of results; -1: none.
int last_return(const Skeleton& skeleton) {
  for (const Skeleton::Op& op : skeleton.ops | std::views::reverse) {
    if (op.kind == Skeleton::Kind::kWait && skeleton.casts[static_cast<size_t>(op.index)].results) return op.index;
  }
  return -1;
}

}  // namespace

StagedPass staged_pass(size_t num_ranks, int num_stages) {
  StagedPass pass;
  pass.num_ranks = static_cast<int>(num_ranks);
  pass.num_stages = num_stages;
  pass.stages.resize(num_ranks * (static_cast<size_t>(num_stages) + 1));
  pass.merge_s.resize(num_ranks);
  return pass;
}

std::vector<RankTime> time_of(const StagedPass& pass, const Skeleton& skeleton, ClockTrace* trace) {
  const auto num_ranks = static_cast<size_t>(pass.num_ranks), num_stages = static_cast<size_t>(pass.num_stages);
  ClockLoads loads = empty_loads(skeleton, pass.num_ranks, static_cast<int>(skeleton.casts.size()));
  loads.hides = pass.hides;
  const StageSeconds* stages = pass.stages.data();
  for (size_t r = 0; r < num_ranks; ++r, stages += num_stages + 1) {
    for (size_t s = 0; s <= num_stages; ++s) loads.attend(s, r) = stages[s].attend_s;
    for (size_t c = 0; c < skeleton.casts.size(); ++c) {
      const Skeleton::CastOfStep& cast = skeleton.casts[c];
      const StageSeconds& stage = stages[static_cast<size_t>(cast.step)];
      CastLoad& load = loads.cast(c, r);
      load.seconds = cast.results ? stage.return_s : stage.cast_s;
      load.link = (cast.results ? kBack : kThere) + (stage.crosses ? kBetweenNodes : 0);
    }
  }
  for (size_t c = 0; c < skeleton.casts.size(); ++c) loads.load_of_cast[c] = static_cast<int>(c);
  if (const int last = last_return(skeleton); last >= 0) {
    for (size_t r = 0; r < num_ranks; ++r) loads.cast(static_cast<size_t>(last), r).after_s = pass.merge_s[r];
  }
  return run_clock(skeleton, loads, trace);
}

}  // namespace tangram
