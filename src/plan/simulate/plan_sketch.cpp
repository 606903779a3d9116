// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/simulate/plan_sketch.hpp"

#include <algorithm>
#include <utility>

#include "plan/dispatch.hpp"

namespace tangram::sim {

namespace {

std::vector<AttnSlice> something(bool is_some) {
  return is_some ? std::vector{AttnSlice::full({0, 1}, {0, 1})} : std::vector<AttnSlice>{};
}

}  // namespace

KvSketch::KvSketch(const DistAttnConfig& config, const Dispatch& q_dispatch, const Dispatch& k_dispatch,
                   bool any_remote, int backward_stages) {
  plan_.config = config;
  plan_.q_dispatch = q_dispatch;
  plan_.k_dispatch = k_dispatch;
  RankPlan& rank = std::get<std::vector<RankPlan>>(plan_.tables).emplace_back();
  rank.forward.resize(any_remote ? 2 : 1);
  rank.backward.resize(static_cast<size_t>(backward_stages) + 1);
}

int64_t KvSketch::peak_bytes(const RankNeeds& needs) {
  RankPlan& rank = std::get<std::vector<RankPlan>>(plan_.tables).front();
  rank.kv_rows = needs.buffer_rows;
  rank.remote_kv_rows = needs.remote_rows;
  rank.segments.clear();
  int64_t shard_row = 0;
  for (const Range& own : needs.local) {
    const Range of_shard{shard_row, shard_row + own.size()};
    rank.segments.push_back({of_shard, own.begin, 0, of_shard.begin, 0, 0});
    shard_row = of_shard.end;
  }
  if (rank.forward.size() > 1) rank.forward.back().slices = something(needs.remote_rows > 0);
  return plan_.peak_bytes(0);
}

int64_t largest_peak_bytes(const GridSketch& sketch) {
  Plan plan;
  plan.config = sketch.config;
  plan.q_dispatch = sketch.q_dispatch;
  plan.k_dispatch = sketch.k_dispatch;
  GridPlan& grid = plan.tables.emplace<GridPlan>();
  grid.ulysses_degree = sketch.shape.ulysses_degree;
  grid.row_groups = sketch.shape.row_groups;
  grid.row_move = sketch.shape.row_move;
  grid.head_chunks = sketch.head_chunks;
  std::vector<GridStep>& steps = grid.steps.emplace_back(empty_grid_steps(sketch.shape, 0));
  for (size_t s = 0; s < steps.size(); ++s) steps[s].slices = something(sketch.computes[s]);
  return plan.peak_bytes(0);
}

int64_t largest_peak_bytes(const SubRingSketch& sketch) {
  const SubRingLayout& layout = sketch.layout;
  const int cp_size = sketch.config.cp_size, last = layout.num_steps() - 1;
  Plan plan;
  plan.config = sketch.config;
  plan.q_dispatch = {cp_size, sketch.q_rows, dispatch_sequential(cp_size, cp_size)};
  plan.k_dispatch = {cp_size, sketch.k_rows, dispatch_sequential(cp_size, cp_size)};
  GridPlan& grid = plan.tables.emplace<GridPlan>();
  grid.row_groups = cp_size;
  grid.row_move = cp_size > 1 ? RowMove::kSubRings : RowMove::kNone;
  grid.levels = layout.levels;
  grid.steps.resize(2);  // of the rank that is asked about, and of one with the most rows of all in each step
  std::vector<GridStep>& largest = grid.steps.back();
  largest.resize(static_cast<size_t>(last) + 1);
  int64_t most_last[2] = {-1, -1};  // of ranks that compute in the last step, or do not
  for (int step = 1; step <= last; ++step) {
    int64_t most = 0, most_home = 0;
    for (int rank = 0; rank < cp_size; ++rank) {
      const int64_t rows = layout.rows_in_step(rank, step);
      most = std::max(most, rows);
      most_home = std::max(most_home, layout.rows_home(rank, step));
      if (step < last) continue;
      int64_t& most_of = most_last[sketch.computes_last[static_cast<size_t>(rank)] ? 0 : 1];
      most_of = std::max(most_of, rows);
    }
    SubRingStep& turn = largest[static_cast<size_t>(step)].sub_rings;
    turn.rows = most;
    turn.casts.resize(1);
    turn.home.recvs = {{0, {0, most_home}, 0}};
  }
  if (last > 1) largest[1].slices = something(sketch.computes_later);
  if (last == 0) most_last[0] = 0;
  // Gradients are made for the rows of one step at a time. So a rank with the most rows in every step needs no more
  // than the one with the most in the step that counts. In the last one rows stay as long as they are computed with.
  int64_t peak = 0;
  for (const bool computes : {true, false}) {
    const int64_t rows = most_last[computes ? 0 : 1];
    if (rows < 0) continue;
    std::vector<GridStep>& own = grid.steps.front();
    own = largest;
    if (last > 0) {
      own.back().sub_rings.rows = rows;
      own.back().slices = something(computes);
    }
    peak = std::max(peak, plan.peak_bytes(0));
  }
  return peak;
}

}  // namespace tangram::sim
