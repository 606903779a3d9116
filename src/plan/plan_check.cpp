// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/plan_check.hpp"

#include <utility>
#include <vector>

#include "core/require.hpp"
#include "plan/nodes/node_stages.hpp"
#include "plan/program/emit.hpp"
#include "plan/rank_plan.hpp"
#include "plan/stages.hpp"
#include "plan/validate.hpp"

namespace tangram {

namespace {

// Stages are the planner's choice and cannot be derived, but they must be numbered as stages are.
StageCounts check_stage_numbers(const Plan& plan) {
  const std::vector<RankPlan>& ranks = plan.ranks();
  const StageCounts counts{static_cast<int>(ranks[0].forward.size()) - 1,
                           static_cast<int>(ranks[0].backward.size()) - 1};
  require(counts.forward >= 0 && counts.backward >= 0, "plan_from_json: both passes must have a local stage");
  const bool keep = plan.config.overlap.keep_remote_kv;
  for (int r = 0; r < plan.cp_size(); ++r) {
    for (const KvSegment& segment : ranks[static_cast<size_t>(r)].segments) {
      const auto fits = [&](int stage, int count) {
        return segment.owner == r ? stage == 0 : 1 <= stage && stage <= count;
      };
      require(
          fits(segment.stage_fwd, counts.forward) && fits(segment.stage_bwd, counts.backward),
          "plan_from_json: local rows must be in stage 0 and remote rows in a remote stage (got stages {} and {} of "
          "rank {} for rows [{}, {}))",
          segment.stage_fwd, segment.stage_bwd, r, segment.global.begin, segment.global.end);
      require(!keep || segment.owner == r ||
                  (segment.stage_fwd == counts.forward) == (segment.stage_bwd == counts.backward),
              "plan_from_json: with keep_remote_kv the last stage of both passes must hold the same rows (rank {})", r);
    }
  }
  return counts;
}

// The segments as they were before stages cut them.
std::vector<KvSegment> without_stages(const std::vector<KvSegment>& segments) {
  std::vector<KvSegment> result;
  for (KvSegment segment : segments) {
    segment.stage_fwd = segment.stage_bwd = 0;
    if (!result.empty()) {
      KvSegment& last = result.back();
      if (last.global.end == segment.global.begin && last.row + last.global.size() == segment.row &&
          last.owner == segment.owner && last.owner_row + last.global.size() == segment.owner_row) {
        last.global.end = segment.global.end;
        continue;
      }
    }
    result.push_back(segment);
  }
  return result;
}

// A grid and moved work are not written but made again; what is written of them must fit.
void check_remade(Plan& plan) {
  Plan expected = make_plan(plan.mask, plan.config, plan.q_dispatch, plan.k_dispatch);
  require(plan.ranks() == (moves_kv_alone(expected) ? expected.ranks() : expected.rank_totals()),
          "plan_from_json: ranks must follow from the mask, the dispatches and the strategy, but differ");
  plan.tables = std::move(expected.tables);
}

// How many times the rows of `dispatch` make up the sequence, 0 if they do not.
int64_t times_covered(const Dispatch& dispatch, int64_t seqlen) {
  const int64_t num_chunks = dispatch.num_chunks();
  if (num_chunks == 0 || dispatch.chunk_size <= 0 || dispatch.chunk_size > seqlen / num_chunks) return 0;
  return seqlen % dispatch.seqlen() == 0 ? seqlen / dispatch.seqlen() : 0;
}

}  // namespace

void check_consistent(Plan& plan) {
  const int64_t num_masks = times_covered(plan.q_dispatch, plan.mask.seqlen_q());
  require(num_masks <= 1 || num_masks != times_covered(plan.k_dispatch, plan.mask.seqlen_k()),
          "plan_from_json: plans of masks of head groups cannot be read back, plan the masks anew (got {} masks)",
          num_masks);
  validate_dispatch(plan.q_dispatch, plan.cp_size(), plan.mask.seqlen_q(), "plan_from_json: q_dispatch");
  validate_dispatch(plan.k_dispatch, plan.cp_size(), plan.mask.seqlen_k(), "plan_from_json: k_dispatch");
  const std::vector<RankPlan>& ranks = plan.ranks();
  require(static_cast<int>(ranks.size()) == plan.cp_size(),
          "plan_from_json: ranks must have cp_size entries (got {} and cp_size={})", ranks.size(), plan.cp_size());
  if (plan.config.strategy.name != Strategy::kTangram || plan.config.movement.algorithm != Movement::kKv) {
    check_remade(plan);
    return;
  }
  const StageCounts counts = check_stage_numbers(plan);
  if (has_nodes(plan.config)) {
    const NodeShape nodes = node_shape(plan.config);
    const auto rows = node_rows(ranks, nodes);
    by_stage(rows, ranks, nodes, AttnPass::kForward, counts.forward);
    by_stage(rows, ranks, nodes, AttnPass::kBackward, counts.backward);
  }
  std::vector<RankPlan> expected = make_rank_plans(plan.mask, plan.q_dispatch, plan.k_dispatch);
  for (size_t r = 0; r < expected.size(); ++r) {
    require(without_stages(ranks[r].segments) == expected[r].segments,
            "plan_from_json: ranks[{}].segments must follow from the mask and the dispatches, but differ", r);
    expected[r].segments = ranks[r].segments;
  }
  build_stages(expected, counts, plan.config.overlap.keep_remote_kv);
  for (size_t r = 0; r < expected.size(); ++r) {
    require(expected[r] == ranks[r],
            "plan_from_json: ranks[{}] must follow from the mask and the dispatches, but differs", r);
  }
}

}  // namespace tangram
