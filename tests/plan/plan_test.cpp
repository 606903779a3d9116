// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "reference/mask_cases.hpp"
#include "reference/plan_check.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using reference::expect_valid;
using reference::MaskCase;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr DispatchAlgorithm kAllAlgorithms[] = {
    DispatchAlgorithm::kAuto,    DispatchAlgorithm::kSequential,       DispatchAlgorithm::kZigzag,
    DispatchAlgorithm::kMinHeap, DispatchAlgorithm::kSortedSequential, DispatchAlgorithm::kTangram,
};

DistAttnConfig config_of(int cp_size, DispatchAlgorithm algorithm = DispatchAlgorithm::kAuto, int64_t chunk_size = 0) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.dispatch.algorithm = algorithm;
  config.dispatch.chunk_size = chunk_size;
  return config;
}

class PlanOfFile : public testing::TestWithParam<const char*> {};

TEST_P(PlanOfFile, EveryCaseIsCoveredOnceAndMovesWhatBruteForceSays) {
  for (const MaskCase& c : reference::load_mask_cases(GetParam())) {
    SCOPED_TRACE(c.name);
    for (const int cp_size : {2, 3, 4, 8}) {
      const int64_t seqlen = c.seqlen + compute_pad_size(c.seqlen, cp_size, 64);
      const Mask mask = Mask(c.seqlen, c.seqlen, c.slices).padded(seqlen, seqlen);
      ASSERT_EQ(mask.area(), c.area);
      for (const DispatchAlgorithm algorithm : kAllAlgorithms) {
        // What ignores locality falls into so many pieces at 1M rows that the check takes long and shows nothing new.
        const bool local = algorithm == DispatchAlgorithm::kAuto || algorithm == DispatchAlgorithm::kTangram ||
                           algorithm == DispatchAlgorithm::kSequential;
        if (!local && c.seqlen > (1 << 17)) continue;
        SCOPED_TRACE(std::string(to_string(algorithm)) + " cp " + std::to_string(cp_size));
        const Plan plan = make_plan(mask, config_of(cp_size, algorithm));
        ASSERT_NO_FATAL_FAILURE(expect_valid(plan));
        ASSERT_EQ(plan.rows_moved(), rows_lower_bound(mask, plan.q_dispatch, plan.k_dispatch));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Data, PlanOfFile, testing::Values("masks.json", "dist_masks.json"));

TEST(Plan, RandomMasksOfSelfAndCrossAttentionAreCovered) {
  std::mt19937 rng(7);
  const auto draw = [&rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  for (int n = 0; n < 400; ++n) {
    DistAttnConfig config = config_of(draw(1, 5));
    config.dispatch.chunk_size = draw(0, 3);
    const int64_t unit = config.cp_size * std::max<int64_t>(config.dispatch.chunk_size, 1);
    const int64_t seqlen_q = unit * draw(1, 4);
    const int64_t seqlen_k = draw(0, 1) == 0 ? seqlen_q : unit * draw(1, 5);
    const Mask mask(seqlen_q, seqlen_k, reference::random_disjoint_slices(rng, seqlen_q, seqlen_k, 10));
    config.dispatch.algorithm = kAllAlgorithms[draw(0, 5)];
    config.overlap = {draw(0, 4), draw(0, 4), false};
    config.overlap.keep_remote_kv = draw(0, 1) == 1 && (config.overlap.num_stages_bwd != 1);
    SCOPED_TRACE(n);
    const Plan plan = make_plan(mask, config);
    ASSERT_NO_FATAL_FAILURE(expect_valid(plan));
    ASSERT_EQ(plan.rows_moved(), rows_lower_bound(mask, plan.q_dispatch, plan.k_dispatch));
    ASSERT_EQ(plan, make_plan(mask, config));
    if (config.overlap.num_stages_fwd > 0) {
      ASSERT_EQ(plan.ranks[0].forward.size(), static_cast<size_t>(config.overlap.num_stages_fwd) + 1);
    }
    // Another mask over the same rows.
    const Mask other(seqlen_q, seqlen_k, reference::random_disjoint_slices(rng, seqlen_q, seqlen_k, 4));
    const Plan second = make_plan(other, config, plan.q_dispatch, plan.k_dispatch);
    ASSERT_NO_FATAL_FAILURE(expect_valid(second));
    ASSERT_EQ(second.q_dispatch, plan.q_dispatch);
  }
}

}  // namespace
}  // namespace tangram
