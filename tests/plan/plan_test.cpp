// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

#include "plan/dispatch.hpp"
#include "reference/cells.hpp"
#include "reference/mask_cases.hpp"
#include "reference/plan_check.hpp"
#include "support/sample.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using reference::expect_valid;
using reference::MaskCase;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr DispatchAlgorithm kAllAlgorithms[] = {
    DispatchAlgorithm::kAuto,       DispatchAlgorithm::kSequential,         DispatchAlgorithm::kZigzag,
    DispatchAlgorithm::kMinHeap,    DispatchAlgorithm::kSortedSequential,   DispatchAlgorithm::kTangram,
    DispatchAlgorithm::kLowerBound, DispatchAlgorithm::kDynamicProgramming, DispatchAlgorithm::kBatchTopP,
    DispatchAlgorithm::kRandom,
};

DistAttnConfig config_of(int cp_size, DispatchAlgorithm algorithm = DispatchAlgorithm::kAuto, int64_t chunk_size = 0) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.dispatch.algorithm = algorithm;
  config.dispatch.chunk_size = chunk_size;
  return config;
}

// A HeadConfig or AttnShape of another head_dim had values of 128.
TEST(HeadConfigTest, ValuesHaveTheDimOfKeysUnlessGiven) {
  EXPECT_EQ((HeadConfig{8, 2, 64}).head_dim_v, 64);
  EXPECT_EQ((HeadConfig{.num_heads_q = 8, .head_dim = 192}).head_dim_v, 192);
  EXPECT_EQ((HeadConfig{8, 2, 192, 128}).head_dim_v, 128);
  EXPECT_EQ(HeadConfig{}.head_dim_v, 128);
  EXPECT_EQ((AttnShape{.seqlen_q = 4, .seqlen_k = 4, .head_dim = 64}).head_dim_v, 64);
  EXPECT_EQ(MachineModel{.head_dim = 64}.head_dim_v, 64);
}

class PlanOfFile : public testing::TestWithParam<const char*> {};

TEST_P(PlanOfFile, EveryCaseIsCoveredOnceAndMovesWhatBruteForceSays) {
  support::Sample sample(7);
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
        if (!local && c.seqlen > (1 << 16)) continue;
        if (!sample.takes_next()) continue;
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
    config.dispatch.algorithm = kAllAlgorithms[draw(0, 9)];
    config.overlap = {draw(0, 4), draw(0, 4), false};
    config.overlap.keep_remote_kv = draw(0, 1) == 1 && (config.overlap.num_stages_bwd != 1);
    SCOPED_TRACE(n);
    const Plan plan = make_plan(mask, config);
    ASSERT_NO_FATAL_FAILURE(expect_valid(plan));
    ASSERT_EQ(plan.rows_moved(), rows_lower_bound(mask, plan.q_dispatch, plan.k_dispatch));
    ASSERT_EQ(plan, make_plan(mask, config));
    if (config.overlap.num_stages_fwd > 0) {
      ASSERT_EQ(plan.ranks()[0].forward.size(), static_cast<size_t>(config.overlap.num_stages_fwd) + 1);
    }
    // Another mask over the same rows.
    const Mask other(seqlen_q, seqlen_k, reference::random_disjoint_slices(rng, seqlen_q, seqlen_k, 4));
    const Plan second = make_plan(other, config, plan.q_dispatch, plan.k_dispatch);
    ASSERT_NO_FATAL_FAILURE(expect_valid(second));
    ASSERT_EQ(second.q_dispatch, plan.q_dispatch);
  }
}

TEST(Plan, BadInputIsNamed) {
  const auto expect = [](const Mask& mask, const DistAttnConfig& config, const std::string& text) {
    EXPECT_THAT([&] { make_plan(mask, config); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  const Mask mask = causal_mask(1000, 1000);
  expect(mask, config_of(0), "make_plan: cp_size must lie in [1, 65536] (got 0)");
  expect(mask, config_of(3), "make_plan: seqlen_q must be a multiple of cp_size * chunk_size");
  expect(mask, config_of(4, DispatchAlgorithm::kAuto, 64), "(got seqlen_q=1000, cp_size=4, chunk_size=64)");
  expect(mask, config_of(4, DispatchAlgorithm::kAuto, 512),
         "every rank needs a chunk, so cp_size must not exceed seqlen_q / chunk_size");
  expect(mask, config_of(2000), "every rank needs a chunk");
  expect(mask, config_of(4, DispatchAlgorithm::kAuto, -1), "dispatch.chunk_size must not be negative (got -1)");
  expect(Mask(0, 0, {}), config_of(1), "seqlen_q must be positive (got 0)");
  expect(Mask(8, 9, {}), config_of(4), "seqlen_k must be a multiple of cp_size * chunk_size");
  DistAttnConfig config = config_of(4);
  config.heads.num_heads_kv = 7;
  expect(mask, config, "num_heads_q must be a positive multiple of num_heads_kv (got num_heads_q=64, num_heads_kv=7)");
  config = config_of(4);
  config.heads.head_dim = 0;
  expect(mask, config, "head dims must be positive (got head_dim=0, head_dim_v=128)");
  config = {};
  config.heads = {1 << 16, 1, 1 << 16, 64};
  expect(mask, config, "rows must not exceed 1048576 elements (got num_heads_q=65536, head_dim=65536, head_dim_v=64)");
  config = config_of(4);
  config.overlap.num_stages_fwd = -1;
  expect(mask, config, "numbers of stages must lie in [0, 64] (got num_stages_fwd=-1, num_stages_bwd=0)");
  config = config_of(4);
  config.overlap.sm_margin = 129;
  expect(mask, config, "overlap.sm_margin must lie in [0, 128] (got 129)");
  config.overlap = {.launch_order = LaunchOrder::kHighPriority, .sm_margin = 8};
  expect(mask, config, "overlap.sm_margin goes with launch_order auto or sm_margin (got 8 and high_priority)");
  config = config_of(4);
  config.cost.link_bytes_per_s = std::numeric_limits<double>::quiet_NaN();
  expect(mask, config, "rates of the cost model must be finite and positive (got nan)");
  config = config_of(4);
  config.cost.copy_latency_s = -1;
  expect(mask, config, "times of the cost model must be finite and not negative (got -1)");
  config = config_of(4);
  config.cost.tile_rows = 0;
  expect(mask, config, "cost.tile_rows must lie in [1, 65536] (got 0)");
}

TEST(Plan, BadDispatchesAreNamed) {
  const Mask mask = causal_mask(16, 16);
  const Dispatch good{2, 4, {0, 1, 1, 0}};
  const auto expect = [&](const Dispatch& q, const Dispatch& k, const std::string& text) {
    EXPECT_THAT([&] { make_plan(mask, config_of(2), q, k); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  expect({3, 4, {0, 1, 1, 0}}, good, "make_plan: q_dispatch.cp_size must equal config.cp_size (got 3 and 2)");
  expect({2, 0, {0, 1, 1, 0}}, good, "q_dispatch.chunk_size must be positive (got 0)");
  expect({2, 8, {0, 1, 1, 0}}, good, "q_dispatch must cover the sequence (got 4 chunks of 8 rows for 16 rows)");
  expect(good, {2, 4, {0, 1, 2, 0}}, "k_dispatch.rank_of_chunk[2] must lie in [0, 2) (got 2)");
  expect(good, {2, 4, {0, 1, 0, 0}}, "must give every rank equally many chunks (got 3 of 4 for rank 0)");
  EXPECT_NO_THROW(make_plan(mask, config_of(2), good, good));
  EXPECT_THROW(good.rows_of_rank(2), InvalidArgument);
}

TEST(Plan, PadSizeMakesTheLengthDivide) {
  EXPECT_EQ(compute_pad_size(1000, 4, 64), 24);
  EXPECT_EQ(compute_pad_size(1024, 4, 64), 0);
  EXPECT_EQ(compute_pad_size(1, 8, 128), 1023);
  for (const auto& [seqlen, cp_size, chunk_size] : {std::tuple{int64_t{0}, 4, int64_t{64}}, {5, 0, 64}, {5, 4, 0}}) {
    EXPECT_THAT([&] { compute_pad_size(seqlen, cp_size, chunk_size); },
                ThrowsMessage<InvalidArgument>(HasSubstr("must lie in [1, 2^31] (got 0)")));
  }
}

TEST(Plan, AMaskThatShowsNothingIsPlannedToo) {
  const Plan plan = make_plan(Mask(64, 64, {}), config_of(4));
  expect_valid(plan);
  EXPECT_EQ(plan.rows_moved(), 0);
  EXPECT_EQ(plan.balance(), 1);
  EXPECT_EQ(plan.ranks()[0].kv_rows, 0);
}

TEST(Plan, OneRankHoldsAllAndMovesNothing) {
  const Plan plan = make_plan(causal_mask(256, 256), config_of(1));
  expect_valid(plan);
  EXPECT_EQ(plan.rows_moved(), 0);
  EXPECT_EQ(plan.ranks()[0].slices, std::vector<AttnSlice>(plan.mask.slices().begin(), plan.mask.slices().end()));
}

TEST(Plan, AFullMaskStaysOneRectanglePerRank) {
  // Keys in global order: what is one interval in the mask is one on the rank, whichever way chunks are sharded.
  for (const DispatchAlgorithm algorithm : {DispatchAlgorithm::kSequential, DispatchAlgorithm::kZigzag}) {
    const Plan plan = make_plan(full_mask(4096, 4096), config_of(4, algorithm, 128));
    for (const RankPlan& rank : plan.ranks()) {
      EXPECT_THAT(rank.slices, testing::ElementsAre(AttnSlice::full({0, 1024}, {0, 4096})));
    }
  }
}

TEST(Plan, PeakBytesAddUp) {
  DistAttnConfig config = config_of(2, DispatchAlgorithm::kSequential);
  config.heads = {4, 2, 8, 16, DType::kBFloat16};
  const auto peak_bytes = [&] { return make_plan(full_mask(64, 64), config).peak_bytes(0); };
  constexpr int64_t kKvRow = 2 * (8 + 16);               // elements
  const int64_t q_rows = 32 * (2 * 2 * (4 * 8 + 4 * 16)  // q, dq, out, dout
                               + 4 * 4 + 4 * 4 * 8);     // lse, dq summed in float32
  const int64_t k_rows = 32 * 2 * 2 * kKvRow;            // k, v, their gradients
  const int64_t own_sums = 32 * 4 * kKvRow, computed = 64 * 4 * kKvRow, rows = 64 * 2 * kKvRow;
  EXPECT_EQ(peak_bytes(), q_rows + k_rows + own_sums + computed + rows);
  // Gradients that move in bfloat16 lie beside the float32 ones, and are summed in half the space. With one stage the
  // buffer of K/V is gone by then.
  config.reduce_dtype = DType::kBFloat16;
  config.overlap = {1, 1, false};
  EXPECT_EQ(peak_bytes(), q_rows + k_rows + own_sums / 2 + computed + rows);
  config.overlap = {2, 2, false};
  EXPECT_EQ(peak_bytes(), q_rows + k_rows + own_sums / 2 + computed + 2 * rows);
  // Half of the 32 remote rows come twice: those of the last stage were kept, beside the buffer.
  config.overlap = {2, 2, true};
  EXPECT_EQ(peak_bytes(), q_rows + k_rows + own_sums / 2 + computed + 2 * rows + 16 * 2 * kKvRow);
  EXPECT_THROW(make_plan(full_mask(64, 64), config).peak_bytes(2), InvalidArgument);
}

TEST(Plan, PeakBytesOfARingAreThoseOfTwoBlocks) {
  DistAttnConfig config = config_of(4);
  config.heads = {4, 2, 8, 16, DType::kBFloat16};
  config.strategy.name = Strategy::kRing;
  const Plan plan = make_plan(full_mask(128, 128), config);
  constexpr int64_t kKvRow = 2 * (8 + 16);
  const int64_t shards = 32 * (2 * 2 * (4 * 8 + 4 * 16) + 4 * 4 + 4 * 4 * 8 + 2 * 2 * kKvRow);
  // While a step computes: its block and the next one's, what it makes, and what the step before sends and gets.
  EXPECT_EQ(plan.peak_bytes(0), shards + 32 * kKvRow * (2 * 2 + 4 + 2 * 4));
}

template <class AnyPlan>
concept PointsToItsTables = requires(AnyPlan plan) {
  std::forward<AnyPlan>(plan).grid();
  std::forward<AnyPlan>(plan).movement();
};
static_assert(PointsToItsTables<const Plan&> && PointsToItsTables<Plan&> && !PointsToItsTables<Plan>);

TEST(Plan, WithoutANameGivesItsRanksAway) {
  const Mask mask = causal_mask(256, 256);
  int64_t area = 0;
  for (const RankPlan& rank : make_plan(mask, config_of(4)).ranks()) area += rank.area;
  EXPECT_EQ(area, mask.area());
  DistAttnConfig config = config_of(4);
  config.movement = {Movement::kQo, 1};
  EXPECT_THROW(make_plan(mask, config).ranks(), InvalidArgument);
}

TEST(Plan, HasTablesOfOneKindAndTotalsOfAny) {
  const auto area_of = [](const Plan& plan) {
    const std::vector<RankPlan> totals = plan.rank_totals();
    EXPECT_EQ(static_cast<int>(totals.size()), plan.cp_size());
    return std::accumulate(totals.begin(), totals.end(), int64_t{0},
                           [](int64_t sum, const RankPlan& rank) { return sum + rank.area; });
  };
  const Mask mask = full_mask(256, 256);
  DistAttnConfig config = config_of(4);
  const Plan kv = make_plan(mask, config);
  EXPECT_TRUE(kv.grid() == nullptr && kv.movement() == nullptr && kv.ulysses_degree() == 1);
  EXPECT_EQ(kv.ranks().size(), 4u);
  EXPECT_EQ(kv.rank_totals()[1].kv_rows, kv.ranks()[1].kv_rows);
  EXPECT_EQ(area_of(kv), mask.area());
  config.movement = {Movement::kQo, 1};
  const Plan qo = make_plan(mask, config);
  EXPECT_TRUE(qo.grid() == nullptr && qo.movement() != nullptr);
  EXPECT_EQ(area_of(qo), mask.area());
  config.movement = {};
  config.heads = {4, 4, 16, 16, DType::kFloat32};
  config.strategy.name = Strategy::kUlysses;
  const Plan grid = make_plan(mask, config);
  EXPECT_TRUE(grid.grid() != nullptr && grid.movement() == nullptr && grid.ulysses_degree() == 4);
  EXPECT_EQ(area_of(grid), mask.area());
  EXPECT_THAT([&] { grid.ranks(); }, testing::ThrowsMessage<InvalidArgument>(
                                         HasSubstr("Plan::ranks: plan must move K/V alone (got strategy")));
}

TEST(Plan, ExplainSaysWhatRanksOfOtherPlansHold) {
  DistAttnConfig config = config_of(4);
  config.heads = {4, 4, 16, 16, DType::kFloat32};
  config.strategy.name = Strategy::kRing;
  EXPECT_THAT(explain(make_plan(full_mask(256, 256), config)),
              testing::HasSubstr("row group 3: peak memory of a rank 0.3 MiB, area by step 4096"));
  config.strategy = {};
  config.movement = {Movement::kQo, 1};
  EXPECT_THAT(explain(make_plan(full_mask(256, 256), config)), testing::HasSubstr("peak memory: at most 0."));
}

TEST(Plan, ExplainSaysWhatAndWhy) {
  DistAttnConfig config = config_of(4, DispatchAlgorithm::kZigzag, 128);
  config.overlap = {2, 2, true};
  const std::string text = explain(make_plan(causal_mask(1024, 1024), config));
  for (const char* part : {"1024 x 1024 rows, 1 slice, area 524800", "zigzag over 4 ranks, 8 chunks of 128 rows",
                           "largest area / mean = 1.0000", "K/V rows moved: 2304 (Ring: 3072", "[0, 128) [896, 1024)",
                           "forward: 1 local + 2 remote stages (as configured)", "rows kept from the forward pass",
                           "predicted: forward"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(RowsLowerBound, CountsKeysThatAnotherRankOwns) {
  const Mask mask = sliding_window_mask(16, {3, 0});
  const Dispatch sequential{4, 4, {0, 1, 2, 3}};
  EXPECT_EQ(rows_lower_bound(mask, sequential, sequential), 9);
  const Dispatch reversed{4, 4, {3, 2, 1, 0}};
  EXPECT_EQ(rows_lower_bound(mask, sequential, reversed), 7 + 4 + 4 + 7 - 3 + 3);
  EXPECT_THROW(rows_lower_bound(mask, sequential, {4, 4, {0, 1, 2, 2}}), InvalidArgument);
}

TEST(RowsLowerBound, CountsCellByCell) {
  std::mt19937 rng(31);
  for (int n = 0; n < 300; ++n) {
    const int cp_size = 1 + static_cast<int>(rng() % 4);
    const int64_t q_chunk = 1 + static_cast<int64_t>(rng() % 5), k_chunk = 1 + static_cast<int64_t>(rng() % 5);
    const int64_t q_chunks = cp_size * (1 + static_cast<int64_t>(rng() % 6));
    const int64_t k_chunks = cp_size * (1 + static_cast<int64_t>(rng() % 6));
    const Mask mask(q_chunks * q_chunk, k_chunks * k_chunk,
                    reference::random_disjoint_slices(rng, q_chunks * q_chunk, k_chunks * k_chunk, 6));
    const Dispatch q{cp_size, q_chunk, dispatch_random(q_chunks, cp_size, rng())};
    const Dispatch k{cp_size, k_chunk, dispatch_random(k_chunks, cp_size, rng())};
    const reference::Cells cells(mask.seqlen_q(), mask.seqlen_k(), mask.slices());
    int64_t expected = 0;
    for (int rank = 0; rank < cp_size; ++rank) {
      for (int64_t key = 0; key < mask.seqlen_k(); ++key) {
        if (k.rank_of_chunk[static_cast<size_t>(key / k_chunk)] == rank) continue;
        bool seen = false;
        for (int64_t query = 0; query < mask.seqlen_q() && !seen; ++query) {
          seen = q.rank_of_chunk[static_cast<size_t>(query / q_chunk)] == rank && cells.count(query, key) > 0;
        }
        expected += seen ? 1 : 0;
      }
    }
    ASSERT_EQ(rows_lower_bound(mask, q, k), expected) << n;
  }
}

// It held a byte for each key and rank, which took minutes.
TEST(RowsLowerBound, TakesTheLongestSequences) {
  const int64_t seqlen = int64_t{1} << 31;
  Dispatch sequential{64, seqlen / 64, {}};
  for (int rank = 0; rank < 64; ++rank) sequential.rank_of_chunk.push_back(rank);
  EXPECT_EQ(rows_lower_bound(sliding_window_mask(seqlen, {1023, 0}), sequential, sequential), 63 * 1023);
  EXPECT_EQ(rows_lower_bound(causal_mask(seqlen, seqlen), sequential, sequential), (seqlen / 64) * (63 * 64 / 2));
}

}  // namespace
}  // namespace tangram
