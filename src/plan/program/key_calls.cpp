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
  return std::all_of(plan.ranks().begin(), plan.ranks().end(), [](const RankPlan& rank) {
    return rank.forward.size() == 1 && rank.backward.size() == 1 && rank.segments.size() <= 1;
  });
}

std::vector<LocalKvRange> own_local_ranges(const RankPlan& rank, int self) {
  std::vector<LocalKvRange> local_ranges;
  for (const KvSegment& segment : rank.segments) {
    if (segment.owner != self || segment.global.empty()) continue;
    const LocalKvRange next{{segment.row, segment.row + segment.global.size()}, segment.owner_row};
    if (!local_ranges.empty()) {
      LocalKvRange& last = local_ranges.back();
      if (last.keys.end == next.keys.begin && last.row + last.keys.size() == next.row) {
        last.keys.end = next.keys.end;
        continue;
      }
    }
    local_ranges.push_back(next);
  }
  return local_ranges;
}

std::vector<Range> rows_of(const std::vector<LocalKvRange>& local_ranges) {
  std::vector<Range> rows;
  for (const LocalKvRange& local_range : local_ranges)
    rows.push_back({local_range.row, local_range.row + local_range.keys.size()});
  return joined_ranges(std::move(rows));
}

std::vector<LocalKvRange> worth_reading(const std::vector<LocalKvRange>& own, int64_t border) {
  std::vector<LocalKvRange> worth;
  std::copy_if(own.begin(), own.end(), std::back_inserter(worth),
               [&](const LocalKvRange& local_range) { return local_range.keys.size() > 2 * border; });
  return worth;
}

std::vector<LocalKvRange> to_copy(const std::vector<LocalKvRange>& own, const std::vector<LocalKvRange>& read,
                                  int64_t border) {
  std::vector<LocalKvRange> copied;
  for (const LocalKvRange& local_range : own) {
    const Range keys = local_range.keys;
    if (std::find(read.begin(), read.end(), local_range) == read.end() || keys.size() <= 2 * border) {
      copied.push_back(local_range);
      continue;
    }
    copied.push_back({{keys.begin, keys.begin + border}, local_range.row});
    copied.push_back({{keys.end - border, keys.end}, local_range.row + keys.size() - border});
  }
  return copied;
}

std::vector<LocalKvRange> local_ranges_elsewhere(const Plan& plan, int rank, const ProgramTarget& target) {
  if (target.local_kv_halo < 0 || reads_shard(plan)) return {};
  return worth_reading(own_local_ranges(plan.ranks()[static_cast<size_t>(rank)], rank), target.local_kv_halo);
}

std::vector<KeyReadyFlag> ready_flags_of(const RankPlan& rank, int self, int cp_size, AttnPass pass) {
  struct Coming {
    int stage;
    int distance;
    KeyReadyFlag ready_flag;
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
  for (const Coming& next : coming) ready_flags.push_back(next.ready_flag);
  return ready_flags;
}

}  // namespace tangram
