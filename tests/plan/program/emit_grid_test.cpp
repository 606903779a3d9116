// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// In which order the programs of other strategies send and compute.
#include <gtest/gtest.h>

#include "plan/program/emit.hpp"
#include "plan/program/grid_plans.hpp"
#include "runtime/mask_families.hpp"

namespace tangram {
namespace {

using testing::kSeqlen;
using testing::plan_of;

int number_of(const GroupCastOp& op) { return op.cast; }
int number_of(const WaitOp& op) { return op.cast; }
int number_of(const AttendOp& op) { return op.step; }

/// The index of an operation of a kind.
template <class Op>
size_t index_of(const Program& program, int number) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op* op = std::get_if<Op>(&program.ops[i]);
    if (op != nullptr && number_of(*op) == number) return i;
  }
  ADD_FAILURE() << "no operation of number " << number;
  return 0;
}

TEST(EmitGrid, ChunksOfHcmsMoveWhileOthersCompute) {
  const auto plan =
      plan_of(full_mask(kSeqlen, kSeqlen), {12, 6, 8, 8, DType::kFloat32}, 2, {Strategy::kHcms, 0, 0, {1, 1, 1}});
  for (const bool backward : {false, true}) {
    const CallShape call = CallShape::with_results(DType::kFloat32, DType::kFloat32);
    const Program program =
        backward ? backward_program(*plan, 0, call, {}, false) : forward_program(*plan, 0, call, {});
    ASSERT_EQ(program.casts.size(), 6u);  // inputs of three chunks, then results
    for (int chunk = 0; chunk < 3; ++chunk) {
      const size_t compute = index_of<AttendOp>(program, chunk);
      EXPECT_LT(index_of<GroupCastOp>(program, 2), index_of<AttendOp>(program, 0));
      EXPECT_LT(index_of<WaitOp>(program, chunk), compute);
      EXPECT_LT(compute, index_of<GroupCastOp>(program, 3 + chunk));
      EXPECT_GT(index_of<WaitOp>(program, 3 + chunk), index_of<AttendOp>(program, 2));
      if (chunk < 2) {
        EXPECT_LT(index_of<GroupCastOp>(program, 3 + chunk), index_of<AttendOp>(program, chunk + 1));
        EXPECT_GT(index_of<WaitOp>(program, chunk + 1), compute);
      }
      EXPECT_TRUE(std::get<AttendOp>(program.ops[compute]).beside_transfers);
    }
  }
}

TEST(EmitGrid, TheNextBlockOfARingMovesWhileOneComputes) {
  const auto plan = plan_of(full_mask(kSeqlen, kSeqlen), testing::heads_of(4, 1, 8, 8), 4, {Strategy::kRing, 0, 0, {}});
  const CallShape call = CallShape::with_results(DType::kFloat32, DType::kFloat32);
  const Program forward = forward_program(*plan, 1, call, {});
  for (int step = 0; step + 1 < 4; ++step) {
    EXPECT_LT(index_of<GroupCastOp>(forward, step), index_of<AttendOp>(forward, step));
    EXPECT_LT(index_of<AttendOp>(forward, step), index_of<WaitOp>(forward, step));
  }
  // Stages 0 to 2 bring blocks, 3 to 6 gradients: these move while the next step computes.
  const Program backward = backward_program(*plan, 1, call, {}, false);
  for (int step = 0; step + 1 < 4; ++step) {
    EXPECT_LT(index_of<GroupCastOp>(backward, 3 + step), index_of<AttendOp>(backward, step + 1));
    EXPECT_GT(index_of<WaitOp>(backward, 3 + step), index_of<AttendOp>(backward, step + 1));
  }
}

}  // namespace
}  // namespace tangram
