// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/clock/skeleton.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "core/fork.hpp"
#include "plan/dispatch.hpp"
#include "plan/program/emit.hpp"

namespace tangram {

namespace {

// Operands of all chunks of heads are sent for at once, as on streams.
constexpr ProgramTarget kTarget{.sends_from_anywhere = true, .chunks_ahead = 0, .float_unit = 1};

// Skeletons that are kept: those of some hundred shapes. Longer ones are of thousands of ranks, where making one again
// takes little beside what is done with it.
constexpr size_t kMaxShapes = 512, kMaxKeptOps = 4096;

enum class Of { kKv, kMovement, kGrid, kSubRings };
using Shape = std::array<int, 7>;

using Skeletons = std::map<Shape, SharedSkeleton>;
struct Memo {
  ForkMutex mutex;
  std::unique_ptr<Skeletons> skeletons = std::make_unique<Skeletons>();

  /// Under the lock. A child of a fork leaves a map that a thread of its parent was changing to itself.
  Skeletons& known() {
    if (mutex.was_abandoned()) {
      static_cast<void>(skeletons.release());
      skeletons = std::make_unique<Skeletons>();
    }
    return *skeletons;
  }
};

Memo& memo() {
  static Memo instance;
  return instance;
}

template <class MakePlan>
SharedSkeleton skeleton_of_shape(const Shape& shape, AttnPass pass, bool kept, const MakePlan& make_plan) {
  {
    const std::lock_guard lock(memo().mutex);
    const Skeletons& known = memo().known();
    if (const auto found = known.find(shape); found != known.end()) return found->second;
  }
  const Plan plan = make_plan();
  CallShape call;
  call.wants_dsink = false;
  auto skeleton = std::make_shared<const Skeleton>(skeleton_of(pass == AttnPass::kForward
                                                                   ? forward_program(plan, 0, call, kTarget)
                                                                   : backward_program(plan, 0, call, kTarget, kept)));
  const std::lock_guard lock(memo().mutex);
  Skeletons& known = memo().known();
  if (known.size() >= kMaxShapes) known.clear();
  if (skeleton->ops.size() <= kMaxKeptOps) known.emplace(shape, skeleton);
  return skeleton;
}

Plan empty_plan(int cp_size, int num_heads) {
  Plan plan;
  plan.config.cp_size = cp_size;
  plan.config.heads = {num_heads, num_heads, 1, 1, DType::kBFloat16};
  plan.q_dispatch = plan.k_dispatch = {cp_size, 1, dispatch_sequential(cp_size, cp_size)};
  return plan;
}

const std::vector<AttnSlice> kSomething = {AttnSlice::full({0, 1}, {0, 1})};

}  // namespace

Skeleton skeleton_of(const Program& program) {
  Skeleton skeleton;
  for (const GroupCast& cast : program.casts) skeleton.casts.push_back({cast.step, cast.results, cast.exchanges_heads});
  for (const Op& op : program.ops) {
    if (const auto* post = std::get_if<GroupCastOp>(&op)) skeleton.ops.push_back({Skeleton::Kind::kPost, post->cast});
    if (const auto* wait = std::get_if<WaitOp>(&op)) skeleton.ops.push_back({Skeleton::Kind::kWait, wait->cast});
    if (const auto* attend = std::get_if<AttendOp>(&op)) {
      skeleton.ops.push_back({Skeleton::Kind::kAttend, attend->step});
      skeleton.num_attends = std::max(skeleton.num_attends, attend->step + 1);
    }
  }
  return skeleton;
}

SharedSkeleton kv_skeleton(AttnPass pass, int num_stages, bool kept_first) {
  const Shape shape = {static_cast<int>(Of::kKv), static_cast<int>(pass), num_stages, kept_first};
  return skeleton_of_shape(shape, pass, kept_first, [&] {
    Plan plan = empty_plan(1, 1);
    RankPlan& rank = std::get<std::vector<RankPlan>>(plan.tables).emplace_back();
    for (std::vector<Stage>* stages : {&rank.forward, &rank.backward}) {
      stages->resize(static_cast<size_t>(num_stages) + 1);
      for (Stage& stage : *stages) stage.slices = kSomething;
    }
    plan.config.overlap.keep_remote_kv = rank.backward.back().kept = kept_first;
    return plan;
  });
}

SharedSkeleton movement_skeleton(AttnPass pass, int num_stages) {
  const Shape shape = {static_cast<int>(Of::kMovement), static_cast<int>(pass), num_stages};
  return skeleton_of_shape(shape, pass, false, [&] {
    Plan plan = empty_plan(1, 1);
    MovementRank rank;
    rank.kv_segments = {{{0, 1}, 0, 0, 0, 0}};
    rank.kv_rows = rank.remote_q_rows = 1;
    rank.stages.resize(static_cast<size_t>(num_stages) + 1);
    for (MovementStage& stage : rank.stages) {
      if (&stage != &rank.stages.front()) stage.q.recvs = {{0, {0, 1}, 0}};
      stage.own_slices = kSomething;
    }
    plan.tables = MovementPlan{1, {rank}, {rank}};
    return plan;
  });
}

SharedSkeleton grid_skeleton(AttnPass pass, const GridShape& grid, int num_chunks) {
  const Shape shape = {static_cast<int>(Of::kGrid),     static_cast<int>(pass), grid.ulysses_degree, grid.row_groups,
                       static_cast<int>(grid.row_move), grid.inner_ring_size,   num_chunks};
  return skeleton_of_shape(shape, pass, false, [&] {
    Plan plan = empty_plan(grid.ulysses_degree * grid.row_groups, grid.ulysses_degree * num_chunks);
    const std::vector<int> head_chunks(static_cast<size_t>(num_chunks), 1);
    auto& tables = plan.tables.emplace<GridPlan>(
        GridPlan{grid.ulysses_degree, grid.row_groups, grid.row_move, head_chunks, {}, {empty_grid_steps(grid, 0)}});
    for (GridStep& step : tables.steps[0]) step.slices = kSomething;
    return plan;
  });
}

SharedSkeleton sub_ring_skeleton(AttnPass pass, int num_steps) {
  const Shape shape = {static_cast<int>(Of::kSubRings), static_cast<int>(pass), num_steps};
  return skeleton_of_shape(shape, pass, false, [&] {
    Plan plan = empty_plan(num_steps, 1);
    GridPlan& grid = plan.tables.emplace<GridPlan>();
    grid.row_groups = num_steps;
    grid.row_move = num_steps > 1 ? RowMove::kSubRings : RowMove::kNone;
    grid.head_chunks = {1};
    if (num_steps > 1) grid.levels = {{num_steps, 1, 1}};
    std::vector<GridStep>& steps = grid.steps.emplace_back(static_cast<size_t>(num_steps));
    for (GridStep& step : steps) {
      step.slices = kSomething;
      step.sub_rings.rows = 1;
      if (&step != &steps.front()) step.sub_rings.casts.resize(1);
    }
    return plan;
  });
}

}  // namespace tangram
