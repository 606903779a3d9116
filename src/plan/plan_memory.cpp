// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <span>
#include <type_traits>

#include "tangram/plan.hpp"

namespace tangram {

namespace {

/// Bytes that lie behind a value, in its lists.
struct Inside {
  template <class T>
  static int64_t of(const std::vector<T>& values) {
    int64_t bytes = std::ssize(values) * static_cast<int64_t>(sizeof(T));
    if constexpr (!std::is_trivially_copyable_v<T>) {
      for (const T& value : values) bytes += of(value);
    }
    return bytes;
  }
  static int64_t of(const Exchange& exchange) { return of(exchange.sends) + of(exchange.recvs); }
  static int64_t of(const Stage& stage) { return of(stage.exchange) + of(stage.slices); }
  static int64_t of(const RankPlan& rank) {
    return of(rank.slices) + of(rank.segments) + of(rank.forward) + of(rank.backward);
  }
  static int64_t of(const SubRingStep& step) { return of(step.casts) + of(step.home) + of(step.home_rows); }
  static int64_t of(const GridStep& step) { return of(step.slices) + of(step.sub_rings); }
  static int64_t of(const GridPlan& grid) { return of(grid.head_chunks) + of(grid.levels) + of(grid.steps); }
  static int64_t of(const MovementStage& stage) {
    return of(stage.q) + of(stage.kv) + of(stage.own_slices) + of(stage.moved_slices);
  }
  static int64_t of(const MovementRank& rank) { return of(rank.kv_segments) + of(rank.q_segments) + of(rank.stages); }
  static int64_t of(const MovementPlan& movement) { return of(movement.forward) + of(movement.backward); }
  static int64_t of(const StrategyCandidate& candidate) { return std::ssize(candidate.impossible); }
};

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
  const int64_t q_rows = plan.q_dispatch.rows_per_rank(), k_rows = plan.k_dispatch.rows_per_rank();
  std::vector<int64_t> bytes(static_cast<size_t>(plan.cp_size()));  // of each rank, or row group
  if (const GridPlan* grid = plan.grid()) {
    for (size_t group = 0; group < grid->steps.size(); ++group) {
      for (const GridStep& step : grid->steps[group]) {
        bytes[group] += of_index(step.slices, q_rows * grid->ulysses_degree,
                                 step.block < 0 ? plan.k_dispatch.seqlen() : k_rows * grid->ulysses_degree);
      }
    }
    return *std::max_element(bytes.begin(), bytes.end());
  }
  for (size_t r = 0; r < bytes.size(); ++r) {
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      if (const MovementPlan* movement = plan.movement()) {
        const MovementRank& rank = movement->of(pass)[r];
        for (const MovementStage& stage : rank.stages) {
          bytes[r] += of_index(stage.own_slices, q_rows * movement->head_groups, rank.kv_rows) +
                      of_index(stage.moved_slices, rank.remote_q_rows, rank.kv_rows);
        }
        continue;
      }
      const RankPlan& rank = plan.ranks()[r];
      for (const Stage& stage : pass == AttnPass::kForward ? rank.forward : rank.backward) {
        bytes[r] += of_index(stage.slices, q_rows, rank.kv_rows);
      }
    }
  }
  return *std::max_element(bytes.begin(), bytes.end());
}

int64_t memory_bytes(const Plan& plan) {
  int64_t bytes = static_cast<int64_t>(sizeof(Plan));
  bytes += std::ssize(plan.mask.slices()) * static_cast<int64_t>(sizeof(AttnSlice));
  for (const Dispatch* dispatch : {&plan.q_dispatch, &plan.k_dispatch}) {
    bytes += static_cast<int64_t>(dispatch->rank_of_chunk.runs().size_bytes());
  }
  return bytes + std::visit([](const auto& tables) { return Inside::of(tables); }, plan.tables) +
         Inside::of(plan.candidates);
}

}  // namespace tangram
