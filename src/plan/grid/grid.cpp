// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/grid/grid.hpp"

#include <algorithm>
#include <numeric>

#include "core/require.hpp"

namespace tangram {

namespace {

// Rows of `ranges`, which lie one after the other in a buffer, to rows of the buffer.
struct PlacedRange {
  Range global;
  int64_t row = 0;
};

std::vector<PlacedRange> placed(const std::vector<Range>& ranges) {
  std::vector<PlacedRange> result;
  int64_t row = 0;
  for (const Range& range : ranges) {
    result.push_back({range, row});
    row += range.size();
  }
  return result;
}

// The part of the mask in these rows, in rows of their buffer; keys stay global. Made once for all steps of a group.
std::vector<AttnSlice> slices_in_rows(const Mask& mask, const std::vector<PlacedRange>& q_rows) {
  std::vector<AttnSlice> result;
  for (const AttnSlice& slice : mask.slices()) {
    for (const PlacedRange& q : q_rows) {
      if (intersect(slice.q_range, q.global).empty()) continue;
      const AttnSlice rows = cut_rows(slice, q.global);
      if (!rows.q_range.empty()) result.push_back(shifted(rows, q.row - q.global.begin, 0));
    }
  }
  return result;
}

// The part of them in these keys, in rows of both buffers.
std::vector<AttnSlice> slices_in_keys(const std::vector<AttnSlice>& slices, const std::vector<PlacedRange>& k_rows) {
  std::vector<AttnSlice> result;
  for (const AttnSlice& slice : slices) {
    for (const PlacedRange& k : k_rows) {
      if (intersect(slice.k_range, k.global).empty()) continue;
      const AttnSlice piece = cut_columns(slice, k.global);
      if (!piece.q_range.empty()) result.push_back(shifted(piece, 0, k.row - k.global.begin));
    }
  }
  return merge_touching(std::move(result));
}

int64_t total_area(const std::vector<AttnSlice>& slices) {
  return std::accumulate(slices.begin(), slices.end(), int64_t{0},
                         [](int64_t sum, const AttnSlice& slice) { return sum + area(slice); });
}

// The global rows of each row group in order, neighbours joined: the layout of its buffers.
std::vector<std::vector<Range>> rows_of_groups(const Dispatch& dispatch, int ulysses_degree) {
  std::vector<std::vector<Range>> groups(static_cast<size_t>(dispatch.cp_size / ulysses_degree));
  int64_t begin = 0;
  for (const OwnedChunks& run : dispatch.rank_of_chunk.runs()) {
    std::vector<Range>& rows = groups[static_cast<size_t>(run.rank / ulysses_degree)];
    const Range chunk{begin * dispatch.chunk_size, run.end * dispatch.chunk_size};
    begin = run.end;
    if (!rows.empty() && rows.back().end == chunk.begin) {
      rows.back().end = chunk.end;
    } else {
      rows.push_back(chunk);
    }
  }
  return groups;
}

// The keys of step `block` of `group`: of one group's, or with -1 of all others.
std::vector<PlacedRange> keys_of_block(const std::vector<std::vector<Range>>& k_rows, int64_t seqlen, int group,
                                       int block) {
  if (block >= 0) return placed(k_rows[static_cast<size_t>(block)]);
  std::vector<PlacedRange> keys;
  int64_t begin = 0;
  for (const Range& own : k_rows[static_cast<size_t>(group)]) {
    if (begin < own.begin) keys.push_back({{begin, own.begin}, begin});
    begin = own.end;
  }
  if (begin < seqlen) keys.push_back({{begin, seqlen}, begin});
  return keys;
}

// The steps of all groups; in a ring each has as many as there are groups.
std::vector<std::vector<GridStep>> make_steps(const Plan& plan, const GridShape& shape) {
  constexpr int kMostInRing = 8192;  // 12 GB of steps
  require(shape.row_move != RowMove::kRing || shape.row_groups <= kMostInRing,
          "make_plan: {} takes at most {} row groups (got {} of {} ranks)", to_string(plan.config.strategy.name),
          kMostInRing, shape.row_groups, plan.cp_size());
  const std::vector<std::vector<Range>> q_rows = rows_of_groups(plan.q_dispatch, shape.ulysses_degree);
  const std::vector<std::vector<Range>> k_rows = rows_of_groups(plan.k_dispatch, shape.ulysses_degree);
  std::vector<std::vector<GridStep>> result;
  for (int group = 0; group < shape.row_groups; ++group) {
    const std::vector<AttnSlice> slices = slices_in_rows(plan.mask, placed(q_rows[static_cast<size_t>(group)]));
    std::vector<GridStep> steps = empty_grid_steps(shape, group);
    for (GridStep& step : steps) {
      step.slices = slices_in_keys(slices, keys_of_block(k_rows, plan.mask.seqlen_k(), group, step.block));
      step.area = total_area(step.slices);
    }
    result.push_back(std::move(steps));
  }
  return result;
}

// A block and the one that follows it.
int64_t sub_ring_rows_held(const std::vector<GridStep>& steps) {
  int64_t most = 0, before = 0;
  for (size_t s = 1; s < steps.size(); ++s) {
    most = std::max(most, before + steps[s].sub_rings.rows);
    before = steps[s].sub_rings.rows;
  }
  return most;
}

}  // namespace

Dispatch grid_dispatch(const DistAttnConfig& config, const GridShape& shape, int64_t seqlen, const char* function) {
  const DispatchAlgorithm wanted = config.dispatch.algorithm;
  require(wanted == DispatchAlgorithm::kAuto || wanted == DispatchAlgorithm::kSequential ||
              wanted == DispatchAlgorithm::kZigzag,
          "{}: {} assigns rows sequential or zigzag (got dispatch.algorithm={})", function,
          to_string(config.strategy.name), to_string(wanted));
  const int64_t num_ranks = config.cp_size;
  const bool can_halve = seqlen % (2 * num_ranks) == 0;
  require(wanted != DispatchAlgorithm::kZigzag || can_halve,
          "{}: zigzag needs a sequence that is a multiple of 2 * cp_size (got {} rows and cp_size={})", function,
          seqlen, num_ranks);
  const bool zigzag =
      wanted == DispatchAlgorithm::kZigzag || (wanted == DispatchAlgorithm::kAuto && shape.row_groups > 1 && can_halve);
  const int num_chunks = static_cast<int>(zigzag ? 2 * num_ranks : num_ranks);
  Dispatch dispatch{config.cp_size, seqlen / num_chunks, {}};
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    const int group = chunk / shape.ulysses_degree, member = chunk % shape.ulysses_degree;
    const int mirrored = group < shape.row_groups ? group : 2 * shape.row_groups - 1 - group;
    dispatch.rank_of_chunk.push_back(mirrored * shape.ulysses_degree + member);
  }
  return dispatch;
}

void build_grid(Plan& plan, const GridShape& shape, const char* function) {
  GridPlan& grid = plan.tables.emplace<GridPlan>();
  grid.ulysses_degree = shape.ulysses_degree;
  grid.row_groups = shape.row_groups;
  grid.row_move = shape.row_move;
  if (shape.row_move == RowMove::kSubRings) {
    build_sub_rings(plan);
  } else {
    grid.steps = make_steps(plan, shape);
  }
  grid.head_chunks = head_chunks_of(plan, function);
  plan.predicted = predict_grid(plan);
}

// Every rank computes its group's rows for its share of the heads: so many of all cells, in units of all heads.
std::vector<RankPlan> grid_totals(const Plan& plan) {
  const GridPlan& grid = *plan.grid();
  const int64_t group_k_rows = plan.k_dispatch.rows_per_rank() * grid.ulysses_degree;
  // K/V rows that a rank holds at once, of all K/V heads.
  const int64_t blocks_held = grid.row_move == RowMove::kGather ? grid.row_groups : std::min(grid.row_groups, 2);
  const int heads = local_heads_kv(plan.config.heads, grid.ulysses_degree);
  std::vector<RankPlan> ranks;
  for (const std::vector<GridStep>& steps : grid.steps) {
    int64_t area = 0;
    for (const GridStep& step : steps) area += step.area;
    for (int member = 0; member < grid.ulysses_degree; ++member) {
      RankPlan rank;
      rank.area = area * (member + 1) / grid.ulysses_degree - area * member / grid.ulysses_degree;
      rank.kv_rows = group_k_rows * blocks_held * heads / plan.config.heads.num_heads_kv;
      if (grid.row_move == RowMove::kSubRings) rank.kv_rows = group_k_rows + sub_ring_rows_held(steps);
      rank.forward.resize(1);  // as plans are written
      rank.backward.resize(1);
      ranks.push_back(std::move(rank));
    }
  }
  return ranks;
}

}  // namespace tangram
