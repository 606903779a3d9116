// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/program/program_cases.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;

TEST(ProgramText, ARingIsALineForEachThingThatHappens) {
  const auto plan = testing::plan_of(full_mask(64, 64), {4, 2, 8, 8, DType::kFloat32}, 2, {Strategy::kRing, 0, 0, {}});
  const CallShape call = CallShape::with_results(DType::kFloat32, DType::kFloat32);
  EXPECT_EQ(
      program_text(forward_program(*plan, 1, call, testing::kOnHost)),
      "  r0    arena  float32[32, 2, 8]                      2048 bytes\n"
      "  r1    arena  float32[32, 2, 8]                      2048 bytes\n"
      "     0  group_cast 0 (ring kv 1): k[0, 32) -> r0[0, 32), v[0, 32) -> r1[0, 32); sends 32 rows to 1 rank(s), "
      "receives 32 rows of 1 rank(s)\n"
      "     1  attend     step 0, mask 0: q[0, 32) to k[0, 32) -> out[0, 32), lse; beside transfers\n"
      "     2  wait       0\n"
      "     3  attend     step 1, mask 1: q[0, 32) to r0[0, 32) -> out[0, 32), lse; adds to out and lse\n");
}

TEST(ProgramText, SaysWhatIsAddedUpAndWhatIsKept) {
  DistAttnConfig config;
  config.cp_size = 2;
  config.heads = {4, 2, 8, 8, DType::kBFloat16};
  config.dispatch.algorithm = DispatchAlgorithm::kSequential;
  config.overlap = {.num_stages_fwd = 1, .num_stages_bwd = 1, .keep_remote_kv = true};
  const Plan plan = make_plan(causal_mask(64, 64), config);
  CallShape call = CallShape::with_results(DType::kBFloat16, DType::kBFloat16);
  call.seqlen_sink = 1;
  call.keeps = true;
  EXPECT_THAT(program_text(forward_program(plan, 1, call, testing::kOnHost)),
              ::testing::AllOf(HasSubstr(", may be kept"), HasSubstr("; with the sink")));
  EXPECT_THAT(program_text(backward_program(plan, 1, call, testing::kOnHost, false)),
              ::testing::AllOf(HasSubstr("(dkv stage 1)"), HasSubstr(" +> "), HasSubstr("; adds to dk and dv")));
}

TEST(ProgramText, QueriesThatMoveComeBackAndAreJoinedByLse) {
  DistAttnConfig config;
  config.cp_size = 2;
  config.heads = {4, 2, 8, 8, DType::kFloat32};
  config.dispatch.algorithm = DispatchAlgorithm::kSequential;
  config.overlap = {.num_stages_fwd = 1, .num_stages_bwd = 1};
  config.movement.algorithm = Movement::kQo;
  const Plan plan = make_plan(causal_mask(64, 64), config);
  CallShape call = CallShape::with_results(DType::kFloat32, DType::kFloat32);
  call.seqlen_sink = 1;
  EXPECT_THAT(
      program_text(forward_program(plan, 1, call, testing::kOnHost)),
      HasSubstr(
          "     0  zero       r5[0, 32)\n"
          "     1  floats     -inf -> r6 (32 x 4)\n"
          "     2  group_cast 0 (q stage 1): q[0, 32) -> r0[0, 0); sends 32 rows to 1 rank(s), receives 0 rows of 0 "
          "rank(s)\n"
          "     3  attend     step 0, mask 0: q[0, 32) to k[0, 32) -> out[0, 32), lse; beside transfers\n"
          "     4  wait       0\n"
          "     5  group_cast 1 (out stage 1): r3[0, 0) by lse +> r5[0, 32), r4[0, 0) by lse +> r6[0, 32); sends 0 "
          "rows to 0 rank(s), receives 32 rows of 1 rank(s)\n"
          "     6  wait       1\n"
          "     7  largest    r7 -> max_logits (of 1 x 4)\n"
          "     8  merge      r5[0, 32), r6[0, 32) and the sink by lse +> out[0, 32), lse[0, 32)\n"));
  EXPECT_THAT(program_text(backward_program(plan, 1, call, testing::kOnHost, false)),
              ::testing::AllOf(HasSubstr("delta      out[0, 32) * dout[0, 32) -> r3[0, 32)\n"),
                               HasSubstr("dsink      lse[0, 32), r3[0, 32) -> dsink\n")));
}

}  // namespace
}  // namespace tangram
