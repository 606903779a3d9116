// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A pass is timed in the order in which its programs are written.
#include "plan/clock/skeleton.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "plan/program/program_cases.hpp"
#include "tangram/error.hpp"

namespace tangram::testing {
namespace {

constexpr ProgramTarget kClockTarget{.sends_from_anywhere = true, .chunks_ahead = 0, .float_unit = 1};

using Entry = std::tuple<Skeleton::Kind, int, bool, bool>;  // what, step, results, heads

// Casts of one step that follow each other are one to the clock.
std::vector<Entry> entries_of(const Skeleton& skeleton, bool with_attends, bool with_results) {
  std::vector<Entry> entries;
  for (const Skeleton::Op& op : skeleton.ops) {
    Entry entry{op.kind, op.index, false, false};
    if (op.kind == Skeleton::Kind::kAttend) {
      if (!with_attends) continue;
    } else {
      const Skeleton::CastOfStep& cast = skeleton.casts[static_cast<size_t>(op.index)];
      if (cast.results && !with_results) continue;
      entry = {op.kind, cast.step, cast.results, cast.exchanges_heads};
    }
    if (entries.empty() || entries.back() != entry) entries.push_back(entry);
  }
  return entries;
}

SharedSkeleton sketch_of(const Plan& plan, AttnPass pass, bool kept) {
  if (plan.movement() != nullptr) {
    const auto& ranks = plan.movement()->of(pass);
    return movement_skeleton(pass, static_cast<int>(ranks.front().stages.size()) - 1);
  }
  if (plan.grid() == nullptr) {
    const RankPlan& rank = plan.ranks().front();
    const auto& stages = pass == AttnPass::kForward ? rank.forward : rank.backward;
    return kv_skeleton(pass, static_cast<int>(stages.size()) - 1, kept);
  }
  const GridPlan& grid = *plan.grid();
  if (grid.row_move == RowMove::kSubRings) return sub_ring_skeleton(pass, static_cast<int>(grid.steps.front().size()));
  return grid_skeleton(pass, grid_shape(plan.config, "sketch_of"), static_cast<int>(grid.head_chunks.size()));
}

void expect_same_order(const Case& of, AttnPass pass) {
  const Plan& plan = *of.plan;
  const bool moves_q = plan.movement() != nullptr;
  // The keys' gradients leave when the last stage that sees the keys has ended, which no shape says.
  const bool with_results = !moves_q;
  const bool kept = of.kept && pass == AttnPass::kBackward;
  const SharedSkeleton sketch = sketch_of(plan, pass, kept && !moves_q);
  const std::vector<Entry> all = entries_of(*sketch, true, with_results);
  const std::vector<Entry> casts = entries_of(*sketch, false, with_results);
  for (int rank = 0; rank < plan.cp_size(); ++rank) {
    const Skeleton written =
        skeleton_of(pass == AttnPass::kForward ? forward_program(plan, rank, of.call, kClockTarget)
                                               : backward_program(plan, rank, of.call, kClockTarget, kept));
    const std::vector<Entry> entries = entries_of(written, true, with_results);
    // Calls without work are not made; in a stage in which no rank fetches anything nothing is cast.
    auto next = all.begin();
    for (const Entry& entry : entries) {
      next = std::find(next, all.end(), entry);
      ASSERT_NE(next, all.end()) << of.text << " rank " << rank;
    }
    if (moves_q) continue;
    EXPECT_EQ(entries_of(written, false, true), casts) << of.text << " rank " << rank;
  }
}

TEST(Skeleton, OfAShapeIsThatOfEveryProgram) {
  int num_cases = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    Case drawn;
    try {
      drawn = random_case(random);
    } catch (const InvalidArgument&) {
      continue;  // shapes that the strategy refuses
    }
    ++num_cases;
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward})
      ASSERT_NO_FATAL_FAILURE(expect_same_order(drawn, pass));
  }
  EXPECT_GT(num_cases, 200);
}

TEST(Skeleton, IsMadeOnceForAShape) {
  const SharedSkeleton first = kv_skeleton(AttnPass::kForward, 3, false);
  EXPECT_EQ(first, kv_skeleton(AttnPass::kForward, 3, false));
  EXPECT_NE(first, kv_skeleton(AttnPass::kBackward, 3, false));
  EXPECT_NE(first, kv_skeleton(AttnPass::kForward, 2, false));
}

}  // namespace
}  // namespace tangram::testing
