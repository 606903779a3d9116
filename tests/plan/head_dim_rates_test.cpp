// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Rates by class of head dims reach all that is chosen and predicted: stages, dispatch, strategies, moving queries and
// the simulator.
#include "machine/head_dim_rates.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/cost.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"
#include "tangram/simulate.hpp"

namespace tangram {
namespace {

using ::testing::ThrowsMessage;

struct Dims {
  int head_dim;
  int head_dim_v;
};
constexpr Dims kOther[] = {{32, 32}, {64, 64}, {80, 80}, {96, 96}, {192, 128}, {256, 256}};

DistAttnConfig config_of(const Dims& dims, int cp_size) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, dims.head_dim, dims.head_dim_v, DType::kBFloat16};
  return config;
}

/// Without factors, but at the rates of this one's head dims.
DistAttnConfig at_own_rates(DistAttnConfig config) {
  const HeadConfig& heads = config.heads;
  CostModel& cost = config.cost;
  cost.forward_flops_per_s *=
      head_dim_factor(cost.head_dim_rates, heads.head_dim, heads.head_dim_v, AttnPass::kForward);
  cost.backward_flops_per_s *=
      head_dim_factor(cost.head_dim_rates, heads.head_dim, heads.head_dim_v, AttnPass::kBackward);
  cost.head_dim_rates.clear();
  return config;
}

DistAttnConfig without_factors(DistAttnConfig config) {
  config.cost.head_dim_rates.clear();
  return config;
}

MachineModel busy_machine() {
  MachineModel machine;  // where a step is what kernels take for whole tiles
  machine.forward = {1, 1, 1, 500e12, 0, 0, 0, 0};
  machine.backward = {1, 1, 1, 400e12, 0, 0, 0, 0};
  return machine;
}

double ratio(const Dims& dims, AttnPass pass) {
  return flops_per_cell(dims.head_dim, dims.head_dim_v, pass) / flops_per_cell(128, 128, pass) /
         head_dim_factor(h200::kHeadDimRates, dims.head_dim, dims.head_dim_v, pass);
}

TEST(HeadDimRates, SecondsOfAPlanAreThoseOfTheClass) {
  const Mask mask = causal_mask(16384, 16384);
  const PredictedTime known = make_plan(mask, config_of({128, 128}, 1)).predicted;
  const PredictedTime plain = make_plan(mask, without_factors(config_of({128, 128}, 1))).predicted;
  EXPECT_EQ(known.forward_s, plain.forward_s);  // to the last bit
  EXPECT_EQ(known.backward_s, plain.backward_s);
  for (const Dims& dims : kOther) {
    const PredictedTime time = make_plan(mask, config_of(dims, 1)).predicted;
    EXPECT_NEAR(time.forward_s / known.forward_s, ratio(dims, AttnPass::kForward), 1e-9) << dims.head_dim;
    EXPECT_NEAR(time.backward_s / known.backward_s, ratio(dims, AttnPass::kBackward), 1e-9) << dims.head_dim;
  }
  // Factors of the table, computed by hand: half the operations at 0.81 and 0.795 of the rate.
  const PredictedTime narrow = make_plan(mask, config_of({64, 64}, 1)).predicted;
  EXPECT_NEAR(narrow.forward_s / known.forward_s, 0.5 / 0.81, 1e-9);
  EXPECT_NEAR(narrow.backward_s / known.backward_s, 0.5 / 0.795, 1e-9);
}

TEST(HeadDimRates, SecondsOfASimulationAreThoseOfTheClass) {
  const Mask mask = causal_mask(16384, 16384);
  const auto simulated = [&](const Dims& dims) {
    return simulate(mask, config_of(dims, 1), busy_machine(), "tangram");
  };
  const StrategyPrediction known = simulated({128, 128});
  for (const Dims& dims : kOther) {
    const StrategyPrediction time = simulated(dims);
    EXPECT_NEAR(time.forward_s / known.forward_s, ratio(dims, AttnPass::kForward), 1e-9) << dims.head_dim;
    EXPECT_NEAR(time.backward_s / known.backward_s, ratio(dims, AttnPass::kBackward), 1e-9) << dims.head_dim;
  }
}

// Every strategy of several ranks computes at the rate of the class, whatever the strategy moves.
TEST(HeadDimRates, StrategiesAreSimulatedAtTheRatesOfTheClass) {
  const Mask mask = causal_mask(65536, 65536);
  for (const Dims& dims : kOther) {
    const DistAttnConfig config = config_of(dims, 8);
    MachineModel own;
    own.forward.flops_per_s *= head_dim_factor(own.head_dim_rates, dims.head_dim, dims.head_dim_v, AttnPass::kForward);
    own.backward.flops_per_s *=
        head_dim_factor(own.head_dim_rates, dims.head_dim, dims.head_dim_v, AttnPass::kBackward);
    own.head_dim_rates.clear();
    MachineModel ignored;
    ignored.head_dim_rates.clear();
    for (const std::string_view strategy : simulated_strategies()) {
      if (strategy.starts_with("tangram")) continue;  // assigns by the planner's rates, which are rounded
      const StrategyPrediction time = simulate(mask, config, {}, strategy);
      EXPECT_DOUBLE_EQ(time.compute_s, simulate(mask, config, own, strategy).compute_s) << strategy;
      EXPECT_GT(std::abs(time.compute_s / simulate(mask, config, ignored, strategy).compute_s - 1), 0.01) << strategy;
    }
  }
}

// What is chosen with factors is what is chosen where the rates are those of the head dims, and not what is chosen
// without, for some link or other.
TEST(HeadDimRates, ChoicesAreThoseOfTheRatesOfTheClass) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  int num_strategies = 0, num_stages = 0, num_movements = 0;
  for (const Dims& dims : {Dims{32, 32}, Dims{64, 64}, Dims{256, 256}}) {
    for (const double link : {400e9, 200e9, 100e9, 70e9, 50e9, 35e9, 25e9, 17e9, 12e9, 6e9}) {
      DistAttnConfig config = config_of(dims, 8);
      config.cost.link_bytes_per_s = link;
      const auto compare = [&](const Mask& mask, const auto& choice) {
        const Plan plan = make_plan(mask, config), own = make_plan(mask, at_own_rates(config));
        EXPECT_EQ(choice(plan), choice(own)) << dims.head_dim << " " << link;
        EXPECT_DOUBLE_EQ(plan.predicted.forward_s, own.predicted.forward_s);
        EXPECT_DOUBLE_EQ(plan.predicted.backward_s, own.predicted.backward_s);
        return choice(plan) != choice(make_plan(mask, without_factors(config)));
      };
      const auto stages = [](const Plan& plan) {
        return std::pair(plan.ranks()[0].forward.size(), plan.ranks()[0].backward.size());
      };
      num_stages += compare(full_mask(32768, 32768), stages);
      config.strategy.name = Strategy::kAuto;
      num_strategies += compare(causal_mask(16384, 16384), [](const Plan& plan) { return plan.config.strategy; });
      config.strategy = {};
      config.movement.algorithm = Movement::kAuto;
      num_movements += compare(causal_mask(16384, 16384), [](const Plan& plan) { return plan.movement() == nullptr; });
    }
  }
  EXPECT_GT(num_stages, 0);
  EXPECT_GT(num_strategies, 0);
  EXPECT_GT(num_movements, 0);
}

TEST(HeadDimRates, APlanWithFactorsThatMeanNothingIsRefused) {
  DistAttnConfig config = config_of({64, 64}, 2);
  config.cost.head_dim_rates[1].backward = 0;
  EXPECT_THAT([&] { make_plan(causal_mask(4096, 4096), config); },
              ThrowsMessage<InvalidArgument>("make_plan: cost.head_dim_rates[1] must have finite, positive factors "
                                             "(got forward=0.81, backward=0)"));
}

}  // namespace
}  // namespace tangram
