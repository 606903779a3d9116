// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/key_calls.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/range_sets.hpp"

namespace tangram {

std::vector<KeyCall> key_calls(const RankPlan& rank, AttnPass pass, const ProgramTarget& target) {
  const bool is_forward = pass == AttnPass::kForward;
  const std::vector<Stage>& stages = is_forward ? rank.forward : rank.backward;
  if ((is_forward ? target.forward_calls : target.backward_calls) != KeyCalls::kByStage) {
    return {{0, stages.size(), rank.slices}};
  }
  std::vector<KeyCall> calls;
  for (size_t s = 0; s < stages.size(); ++s) calls.push_back({s, s + 1, stages[s].slices});
  return calls;
}

bool reads_shard(const Plan& plan) {
  return std::all_of(plan.ranks.begin(), plan.ranks.end(), [](const RankPlan& rank) {
    return rank.forward.size() == 1 && rank.backward.size() == 1 && rank.segments.size() <= 1;
  });
}

std::vector<LocalKvRange> own_stretches(const RankPlan& rank, int self) {
  std::vector<LocalKvRange> stretches;
  for (const KvSegment& segment : rank.segments) {
    if (segment.owner != self || segment.global.empty()) continue;
    const LocalKvRange next{{segment.row, segment.row + segment.global.size()}, segment.owner_row};
    if (!stretches.empty()) {
      LocalKvRange& last = stretches.back();
      if (last.keys.end == next.keys.begin && last.row + last.keys.size() == next.row) {
        last.keys.end = next.keys.end;
        continue;
      }
    }
    stretches.push_back(next);
  }
  return stretches;
}

std::vector<Range> rows_of(const std::vector<LocalKvRange>& stretches) {
  std::vector<Range> rows;
  for (const LocalKvRange& stretch : stretches) rows.push_back({stretch.row, stretch.row + stretch.keys.size()});
  return joined_ranges(std::move(rows));
}

std::vector<LocalKvRange> worth_reading(const std::vector<LocalKvRange>& own, int64_t border) {
  std::vector<LocalKvRange> worth;
  std::copy_if(own.begin(), own.end(), std::back_inserter(worth),
               [&](const LocalKvRange& stretch) { return stretch.keys.size() > 2 * border; });
  return worth;
}

std::vector<LocalKvRange> to_copy(const std::vector<LocalKvRange>& own, const std::vector<LocalKvRange>& read,
                                  int64_t border) {
  std::vector<LocalKvRange> copied;
  for (const LocalKvRange& stretch : own) {
    const Range keys = stretch.keys;
    if (std::find(read.begin(), read.end(), stretch) == read.end() || keys.size() <= 2 * border) {
      copied.push_back(stretch);
      continue;
    }
    copied.push_back({{keys.begin, keys.begin + border}, stretch.row});
    copied.push_back({{keys.end - border, keys.end}, stretch.row + keys.size() - border});
  }
  return copied;
}

std::vector<LocalKvRange> stretches_elsewhere(const Plan& plan, int rank, const ProgramTarget& target) {
  if (target.stretch_border < 0 || reads_shard(plan)) return {};
  return worth_reading(own_stretches(plan.ranks[static_cast<size_t>(rank)], rank), target.stretch_border);
}

std::vector<KeyReadyFlag> arrivals_of(const RankPlan& rank, int self, int cp_size, AttnPass pass) {
  struct Coming {
    int stage;
    int distance;
    KeyReadyFlag arrival;
  };
  std::vector<Coming> coming;
  for (const KvSegment& segment : rank.segments) {
    if (segment.owner == self) continue;
    const int stage = (pass == AttnPass::kForward ? segment.stage_fwd : segment.stage_bwd) - 1;
    coming.push_back({stage,
                      (self - segment.owner + cp_size) % cp_size,
                      {{segment.row, segment.row + segment.global.size()}, stage * cp_size + segment.owner}});
  }
  std::stable_sort(coming.begin(), coming.end(), [](const Coming& a, const Coming& b) {
    return std::pair(a.stage, a.distance) < std::pair(b.stage, b.distance);
  });
  std::vector<KeyReadyFlag> ready_flags;
  for (const Coming& next : coming) ready_flags.push_back(next.arrival);
  return ready_flags;
}

}  // namespace tangram
