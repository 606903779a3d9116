// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plan::peak_bytes of many ranks. In a grid a program has operations for every rank that it meets. Most ranks have
// programs of equal sizes: one is written for each kind.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "plan/program/memory.hpp"

namespace tangram {

namespace {

/// Kind of a rank: for each step whether it computes, and the rows of its buffer (kSubRings); its memory depends on
/// that alone.
using KindOfRank = std::vector<std::pair<bool, int64_t>>;

/// A block that is sent on stays until it has been sent, computed with or not. For such steps it matters only whether
/// one computes at all, and so adds to results.
KindOfRank kind_of(const std::vector<GridStep>& steps) {
  std::vector<bool> is_sent_on(steps.size());
  bool adds = false;
  for (size_t s = 1; s < steps.size(); ++s) {
    is_sent_on[static_cast<size_t>(steps[s].posted)] = true;
    adds = adds || !steps[s].slices.empty();
  }
  KindOfRank kind;
  for (size_t s = 0; s < steps.size(); ++s) {
    kind.emplace_back(is_sent_on[s] ? adds : !steps[s].slices.empty(), steps[s].sub_rings.rows);
  }
  return kind;
}

/// A step with the sizes of another, without its tables.
GridStep bare(const GridStep& step) {
  GridStep result{step.block, step.posted, step.source, step.target, step.grad_source, step.grad_target, {}, 0, {}};
  if (!step.slices.empty()) result.slices.push_back(step.slices.front());
  result.sub_rings.rows = step.sub_rings.rows;
  result.sub_rings.casts.resize(std::min<size_t>(1, step.sub_rings.casts.size()));
  return result;
}

/// The steps of one that has the most rows of all in each: buffers of sub-rings are alike on all ranks.
std::vector<GridStep> largest_steps(const std::vector<std::vector<GridStep>>& ranks) {
  std::vector<GridStep> largest(ranks.front().size());
  for (const std::vector<GridStep>& steps : ranks) {
    for (size_t s = 0; s < steps.size(); ++s) {
      SubRingStep& most = largest[s].sub_rings;
      most.rows = std::max(most.rows, steps[s].sub_rings.rows);
      const int64_t home = std::max(most.home.rows_received(), steps[s].sub_rings.home.rows_received());
      most.home.recvs = {{0, {0, home}, 0}};
    }
  }
  return largest;
}

}  // namespace

std::vector<int64_t> peak_bytes_of_ranks(const Plan& plan, int num_ranks) {
  std::vector<int64_t> bytes(static_cast<size_t>(num_ranks));
  if (plan.grid() == nullptr) {
    for (int rank = 0; rank < num_ranks; ++rank) bytes[static_cast<size_t>(rank)] = plan.peak_bytes(rank);
    return bytes;
  }
  const GridPlan& grid = *plan.grid();
  Plan sketch;  // of rank 0, which stands for others
  sketch.config = plan.config;
  sketch.q_dispatch = plan.q_dispatch;
  sketch.k_dispatch = plan.k_dispatch;
  auto& tables = sketch.tables.emplace<GridPlan>(GridPlan{grid.ulysses_degree,
                                                          grid.row_groups,
                                                          grid.row_move,
                                                          grid.head_chunks,
                                                          grid.levels,
                                                          {{}, largest_steps(grid.steps)}});
  std::map<KindOfRank, int64_t> known;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    const std::vector<GridStep>& steps = grid.steps[rank / static_cast<size_t>(grid.ulysses_degree)];
    const auto [found, is_new] = known.emplace(kind_of(steps), 0);
    if (is_new) {
      std::vector<GridStep>& own = tables.steps.front();
      own.clear();
      for (const GridStep& step : steps) own.push_back(bare(step));
      found->second = sketch.peak_bytes(0);
    }
    bytes[rank] = found->second;
  }
  return bytes;
}

}  // namespace tangram
