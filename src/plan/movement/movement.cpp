// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans in which queries may move: work to ranks, then tables.
#include "plan/movement/movement.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/require.hpp"

namespace tangram {

namespace {

constexpr std::array<std::pair<Movement, std::string_view>, 2> kNames = {
    {{Movement::kKv, "kv"}, {Movement::kQo, "qo"}}};

// Calls visit(run index, piece) for the visible cells of the mask in every run of queries.
template <class Visit>
void for_each_row_piece(const Mask& mask, const std::vector<OwnedRun>& q_runs, const Visit& visit) {
  const std::span<const AttnSlice> slices = mask.slices();  // sorted by first query row
  std::vector<size_t> active;
  size_t next = 0;
  for (size_t i = 0; i < q_runs.size(); ++i) {
    const Range rows = q_runs[i].global;
    for (; next < slices.size() && slices[next].q_range.begin < rows.end; ++next) active.push_back(next);
    size_t num_kept = 0;
    for (const size_t index : active) {
      const AttnSlice& slice = slices[index];
      visit(i, rows.contains(slice.q_range) ? slice : cut_rows(slice, rows));
      if (slice.q_range.end > rows.end) active[num_kept++] = index;
    }
    active.resize(num_kept);
  }
}

// Every piece goes where its keys lie.
RankWork work_by_keys(const Plan& plan) {
  RankWork work(static_cast<size_t>(plan.cp_size()));
  const std::vector<OwnedRun> k_runs = owned_runs(plan.k_dispatch);
  for_each_row_piece(plan.mask, owned_runs(plan.q_dispatch), [&](size_t, const AttnSlice& piece) {
    auto run = std::upper_bound(k_runs.begin(), k_runs.end(), piece.k_range.begin,
                                [](int64_t row, const OwnedRun& r) { return row < r.global.end; });
    for (; run != k_runs.end() && run->global.begin < piece.k_range.end; ++run) {
      const AttnSlice part = run->global.contains(piece.k_range) ? piece : cut_columns(piece, run->global);
      if (!part.q_range.empty()) work[static_cast<size_t>(run->owner)].push_back(part);
    }
  });
  return work;
}

// The same work for every head group.
RankWork flattened(RankWork work, const Plan& plan, int head_groups) {
  for (std::vector<AttnSlice>& slices : work) {
    const size_t count = slices.size();
    slices.reserve(count * static_cast<size_t>(head_groups));
    for (int g = 1; g < head_groups; ++g) {
      for (size_t i = 0; i < count; ++i) {
        slices.push_back(shifted(slices[i], g * plan.mask.seqlen_q(), g * plan.mask.seqlen_k()));
      }
    }
  }
  return work;
}

}  // namespace

std::string_view to_string(Movement movement) {
  for (const auto& [value, name] : kNames) {
    if (value == movement) return name;
  }
  return "unknown";
}

Movement parse_movement(std::string_view name) {
  std::string names;
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  require(false, "parse_movement: name must be one of {} (got '{}')", names, name);
  return {};
}

void build_movement(Plan& plan) {
  MovementPlan& movement = plan.movement;
  movement.head_groups = std::max(1, plan.config.movement.head_groups);
  movement.forward = movement_tables(flattened(work_by_keys(plan), plan, movement.head_groups),
                                     flattened_runs(plan.q_dispatch, movement.head_groups),
                                     flattened_runs(plan.k_dispatch, movement.head_groups));
  movement.backward = movement.forward;
  plan.ranks.assign(static_cast<size_t>(plan.cp_size()), {});
  for (size_t r = 0; r < plan.ranks.size(); ++r) plan.ranks[r].area = movement.forward[r].area / movement.head_groups;
}

}  // namespace tangram
