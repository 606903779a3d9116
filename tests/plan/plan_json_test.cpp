// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "reference/cells.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::ThrowsMessage;

Plan small_plan() {
  DistAttnConfig config;
  config.cp_size = 2;
  config.dispatch = {DispatchAlgorithm::kZigzag, 4};
  config.overlap = {2, 2, true};
  config.cost.copy_latency_s = 0.1;  // has no finite binary fraction
  return make_plan(causal_mask(32, 32), config);
}

TEST(PlanJson, RoundTripIsExact) {
  std::mt19937 rng(11);
  const auto draw = [&rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  for (int n = 0; n < 200; ++n) {
    DistAttnConfig config;
    config.cp_size = draw(1, 4);
    config.overlap = {draw(0, 3), draw(0, 3), false};
    config.overlap.keep_remote_kv = config.overlap.num_stages_bwd != 1 && draw(0, 1) == 1;
    config.overlap.launch_order = static_cast<LaunchOrder>(draw(0, 4));
    if (config.overlap.launch_order == LaunchOrder::kSmMargin) config.overlap.sm_margin = draw(0, 128);
    config.cost.link_bytes_per_s = 1e9 / draw(1, 1000);
    config.dispatch.seed = ~uint64_t{0};
    if (draw(0, 1) == 1) config.cost.tile_rows = draw(1, 300);
    if (draw(0, 1) == 1) config.cost.memory_bytes_per_s = 1e12 / draw(1, 300);
    if (draw(0, 1) == 1) config.cost.backward_key_row_s = 1e-12 * draw(0, 300);
    if (config.cp_size % 2 == 0 && draw(0, 1) == 1) {
      config.cost.ranks_per_node = config.cp_size / 2;
      config.cost.between_bytes_per_s = 1e9 * draw(1, 100);
      config.cost.between_sms = draw(0, 8);
    }
    if (draw(0, 1) == 1) config.cost.head_dim_rates.resize(static_cast<size_t>(draw(0, 6)), {64, 32, 0.3, 1.1});
    const int64_t seqlen_q = 8 * config.cp_size;
    const int64_t seqlen_k = draw(0, 1) == 1 ? seqlen_q : 4 * config.cp_size;
    const Plan plan =
        make_plan(Mask(seqlen_q, seqlen_k, reference::random_disjoint_slices(rng, seqlen_q, seqlen_k, 8)), config);
    const std::string text = plan_to_json(plan);
    const Plan back = plan_from_json(text);
    ASSERT_EQ(back, plan);
    ASSERT_EQ(plan_to_json(back), text);
  }
}

TEST(PlanJson, LaunchOrdersHaveNames) {
  for (int i = 0; i < 5; ++i) {
    const auto order = static_cast<LaunchOrder>(i);
    EXPECT_EQ(parse_launch_order(to_string(order)), order);
  }
  EXPECT_EQ(to_string(LaunchOrder::kKernelBarrier), "kernel_barrier");
  EXPECT_THROW(parse_launch_order("fast"), InvalidArgument);
}

// A plan that was written once must stay readable, and mean the same, as long as the format version does not change.
TEST(PlanJson, TheFirstVersionStaysReadable) {
  std::ifstream file(std::string(TANGRAM_TEST_DATA) + "/golden/plan_v2.json");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  DistAttnConfig config;
  config.cp_size = 2;
  config.dispatch = {DispatchAlgorithm::kZigzag, 8, 0};
  config.overlap = {2, 2, true};
  config.cost = {640e12, 560e12, 390e9, 3e-6, 8e-6, 128, 2.0e12, 3.0e-10, {}};  // the last four left out, as then
  const std::vector<int64_t> cu{0, 40, 64};
  Plan expected = make_plan(varlen_mask(cu, true), config);
  const Plan plan = plan_from_json(text);
  expected.predicted = plan.predicted;  // may differ in the last bit between compilers
  EXPECT_EQ(plan, expected);
}

// Every number of the plan's own parts, changed by one, must be noticed.
TEST(PlanJson, AnyChangedNumberOfARankIsRefused) {
  const json original = json::parse(plan_to_json(small_plan()));
  ASSERT_NO_THROW(plan_from_json(original.dump()));
  const json flat = original.at("ranks").flatten();
  int num_changed = 0;
  for (const auto& item : flat.items()) {
    json changed = original;
    json& value = changed.at("ranks")[json::json_pointer(item.key())];
    if (value.is_number()) {
      value = value.get<int64_t>() + 1;
    } else if (value.is_boolean()) {
      value = !value.get<bool>();
    } else if (value.is_null()) {
      value = 0;
    } else {
      continue;  // an empty list
    }
    ++num_changed;
    EXPECT_THROW(plan_from_json(changed.dump()), InvalidArgument) << item.key() << " " << value;
  }
  EXPECT_GT(num_changed, 100);
}

// Cut at any row a million rows are a million chunks, but few runs.
TEST(PlanJson, DispatchesOfManyChunksAreWrittenAsRuns) {
  DistAttnConfig config;
  config.cp_size = 4;
  std::vector<int64_t> cu{0};
  for (int64_t length = 1001; cu.back() + length < 65536; length += 1790) cu.push_back(cu.back() + length);
  cu.push_back(65536);
  const Plan plan = make_plan(varlen_mask(cu, true), config);
  ASSERT_EQ(plan.q_dispatch.chunk_size, 1);
  const std::string text = plan_to_json(plan);
  EXPECT_LT(text.size(), 20000u);
  EXPECT_EQ(plan_from_json(text), plan);
  const json original = json::parse(text);
  const auto expect = [&](const json& runs, const std::string& message) {
    json changed = original;
    changed["q_dispatch"]["runs"] = runs;
    EXPECT_THAT([&] { plan_from_json(changed.dump()); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  expect({{65536, 0}}, "q_dispatch must give every rank equally many chunks");
  expect({{65535, 0}}, "q_dispatch must cover the sequence");
  expect({{0, 0}}, "plan.q_dispatch.runs[0][0] must lie in [1, ");
  expect({{int64_t{1} << 40, 0}}, "plan.q_dispatch.runs[0][0] must lie in [1, ");
  expect({{16384}}, "plan.q_dispatch.runs[0] must have 2 entries (got 1)");
  json both = original;
  both["q_dispatch"]["rank_of_chunk"] = {0};
  EXPECT_THROW(plan_from_json(both.dump()), InvalidArgument);
}

TEST(PlanJson, TruncatedAndBrokenTextIsRefused) {
  const std::string text = plan_to_json(small_plan());
  for (size_t size = 0; size < text.size(); size += 37) {
    ASSERT_THROW(plan_from_json(std::string_view(text).substr(0, size)), InvalidArgument) << size;
  }
  std::mt19937 rng(3);
  for (int n = 0; n < 2000; ++n) {
    std::string broken = text;
    for (int i = 0; i < 3; ++i) broken[rng() % broken.size()] = static_cast<char>(rng() % 256);
    try {
      plan_from_json(broken);
    } catch (const InvalidArgument&) {
    }  // any other exception fails the test
  }
}

TEST(PlanJson, MessagesNameThePlace) {
  const json original = json::parse(plan_to_json(small_plan()));
  const auto expect = [&](const std::string& pointer, const json& value, const std::string& text) {
    json changed = original;
    changed[json::json_pointer(pointer)] = value;
    EXPECT_THAT([&] { plan_from_json(changed.dump()); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  expect("/format_version", 1, "format_version must be 2 (got 1): save the plan anew with this version");
  expect("/config/cp_size", 3, "q_dispatch must give every rank equally many chunks (got 4 of 8");
  expect("/config/cp_size", -1, "plan.config.cp_size must lie in [0, ");
  expect("/config/cp_size", 1.5, "plan.config.cp_size must be a whole number of 64 bits (got 1.5)");
  expect("/config/heads/num_heads_kv", 3, "num_heads_q must be a positive multiple of num_heads_kv");
  expect("/config/heads/dtype", "int8", "int8");
  expect("/config/surplus", 1, "plan.config has an unknown key 'surplus'");
  expect("/algorithm", "best", "got 'best'");
  expect("/ranks/0/forward", "none", "plan.ranks[0].forward must be an array (got string)");
  expect("/ranks/0/forward", json::array(), "must have a local stage");
  expect("/ranks/1/slices/0", {1, 2}, "plan.ranks[1].slices[0] must have 6 entries (got 2)");
  expect("/mask/slices/0/1", 33, "slices[0].q_range must lie in [0, 32)");
  expect("/predicted/forward_s", -1, "predicted times");
  expect("/q_dispatch/rank_of_chunk/0", 5, "rank_of_chunk[0] must lie in [0, 2) (got 5)");
  // Sums of rows that are not rows would overflow before anything is compared.
  expect("/ranks/0/segments/0/2", INT64_MAX, "plan.ranks[0].segments[0][2] must lie in [0, 2147483648]");
  expect("/ranks/0/forward/1/recvs/0/3", INT64_MAX, "plan.ranks[0].forward[1].recvs[0][3] must lie in [0, 2147483648]");
  const std::string text = original.dump();
  EXPECT_THAT([&] { plan_from_json("{\"algorithm\":\"zigzag\"," + text.substr(1)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("text must not repeat the key 'algorithm'")));
  json missing = original;
  missing["config"].erase("cost");
  EXPECT_THAT([&] { plan_from_json(missing.dump()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("plan.config must have the key 'cost'")));
  EXPECT_THAT([] { plan_from_json("[1]"); }, ThrowsMessage<InvalidArgument>(HasSubstr("'format_version'")));
  EXPECT_THAT([] { plan_from_json("{"); }, ThrowsMessage<InvalidArgument>(HasSubstr("text must be JSON")));
  EXPECT_THAT([] { plan_from_json(std::string(1 << 20, '[')); },
              ThrowsMessage<InvalidArgument>(HasSubstr("must not nest deeper")));
}

}  // namespace
}  // namespace tangram
