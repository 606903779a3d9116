// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <span>

#include "tangram/plan.hpp"

namespace tangram {

namespace {

template <class T>
int64_t bytes_of(const std::vector<T>& values) {
  return std::ssize(values) * static_cast<int64_t>(sizeof(T));
}

template <class T, class Inner>
int64_t bytes_of(const std::vector<T>& values, Inner inner) {
  int64_t bytes = bytes_of(values);
  for (const T& value : values) bytes += inner(value);
  return bytes;
}

int64_t inside(const Exchange& exchange) { return bytes_of(exchange.sends) + bytes_of(exchange.recvs); }
int64_t inside(const Stage& stage) { return inside(stage.exchange) + bytes_of(stage.slices); }

int64_t inside(const RankPlan& rank) {
  const auto of_stage = [](const Stage& stage) { return inside(stage); };
  return bytes_of(rank.slices) + bytes_of(rank.segments) + bytes_of(rank.forward, of_stage) +
         bytes_of(rank.backward, of_stage);
}

int64_t inside(const GridStep& step) {
  const auto of_exchange = [](const Exchange& exchange) { return inside(exchange); };
  return bytes_of(step.slices) + bytes_of(step.sub_rings.casts, of_exchange) + inside(step.sub_rings.home) +
         bytes_of(step.sub_rings.home_rows);
}

int64_t inside(const MovementRank& rank) {
  return bytes_of(rank.kv_segments) + bytes_of(rank.q_segments) + bytes_of(rank.stages, [](const MovementStage& stage) {
           return inside(stage.q) + inside(stage.kv) + bytes_of(stage.own_slices) + bytes_of(stage.moved_slices);
         });
}

// Tiles of 128 rows for both passes and the pieces of each slice in them, as the CPU backend lists them.
int64_t of_index(std::span<const AttnSlice> slices, int64_t q_rows, int64_t k_rows) {
  constexpr int64_t kTileRows = 128, kTileBytes = 80;
  constexpr auto kPieceBytes = static_cast<int64_t>(sizeof(AttnSlice) + 2 * sizeof(Range));
  if (slices.empty()) return 0;
  int64_t pieces = 0;
  for (const AttnSlice& slice : slices) pieces += (slice.q_range.size() + slice.k_range.size()) / kTileRows + 4;
  return ((q_rows + k_rows) / kTileRows + 2) * kTileBytes + pieces * kPieceBytes;
}

}  // namespace

int64_t executor_bytes(const Plan& plan) {
  const int64_t q_rows = plan.q_dispatch.rows_per_rank();
  int64_t most = 0;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlan& rank = plan.ranks[r];
    int64_t bytes = 0;
    for (const std::vector<Stage>* stages : {&rank.forward, &rank.backward}) {
      for (const Stage& stage : *stages) bytes += of_index(stage.slices, q_rows, rank.kv_rows);
    }
    for (const std::vector<MovementRank>* pass : {&plan.movement.forward, &plan.movement.backward}) {
      if (pass->empty()) continue;
      const MovementRank& moved = (*pass)[r];
      const int64_t groups = plan.movement.head_groups;
      for (const MovementStage& stage : moved.stages) {
        bytes += of_index(stage.own_slices, q_rows * groups, moved.kv_rows) +
                 of_index(stage.moved_slices, moved.remote_q_rows, moved.kv_rows);
      }
    }
    most = std::max(most, bytes);
  }
  const int64_t group_ranks = plan.grid.ulysses_degree;
  for (const std::vector<GridStep>& steps : plan.grid.steps) {
    int64_t bytes = 0;
    for (const GridStep& step : steps) {
      const int64_t k_rows = step.block < 0 ? plan.k_dispatch.seqlen() : plan.k_dispatch.rows_per_rank() * group_ranks;
      bytes += of_index(step.slices, q_rows * group_ranks, k_rows);
    }
    most = std::max(most, bytes);
  }
  return most;
}

int64_t memory_bytes(const Plan& plan) {
  const auto of_rank = [](const MovementRank& rank) { return inside(rank); };
  int64_t bytes = static_cast<int64_t>(sizeof(Plan));
  bytes += std::ssize(plan.mask.slices()) * static_cast<int64_t>(sizeof(AttnSlice));
  for (const Dispatch* dispatch : {&plan.q_dispatch, &plan.k_dispatch}) {
    bytes += static_cast<int64_t>(dispatch->rank_of_chunk.runs().size_bytes());
  }
  bytes += bytes_of(plan.ranks, [](const RankPlan& rank) { return inside(rank); });
  bytes += bytes_of(plan.grid.head_chunks) + bytes_of(plan.grid.levels);
  bytes += bytes_of(plan.grid.steps, [](const std::vector<GridStep>& steps) {
    return bytes_of(steps, [](const GridStep& step) { return inside(step); });
  });
  bytes += bytes_of(plan.movement.forward, of_rank) + bytes_of(plan.movement.backward, of_rank);
  bytes += bytes_of(plan.candidates, [](const StrategyCandidate& c) { return std::ssize(c.impossible); });
  return bytes;
}

}  // namespace tangram
