// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What is one machine: the planner's flat constants and the simulator's agree, and what cannot be computed with is
// refused.
#include "tangram/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "machine/validate.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Machine, TheDefaultCanBeComputedWith) { validate_machine({}, "test"); }

TEST(Machine, DefaultsOfThePlannerAreThoseOfTheMachine) { EXPECT_EQ(CostModel(), cost_model_of({})); }

TEST(Machine, FlatRatesCountWhatTilesAndItemsCost) {
  MachineModel machine;
  const CostModel cost = cost_model_of(machine);
  EXPECT_LT(cost.forward_flops_per_s, machine.forward.flops_per_s);
  EXPECT_GT(cost.forward_flops_per_s, 0.9 * machine.forward.flops_per_s);
  machine.backward.item_s *= 2;
  EXPECT_LT(cost_model_of(machine).backward_flops_per_s, cost.backward_flops_per_s);
}

TEST(Machine, FlatConstantsAreThoseOfTheMachine) {
  MachineModel machine;
  machine.forward = {1, 1, 128, 500e12, 0, 0, 0, 0};  // what is visible is what it computes
  machine.inside = {1e9, 2e-6};
  machine.stage_overhead_s = 3e-6;
  machine.memory_bytes_per_s = 4e9;
  machine.workers = 10;
  machine.backward.item_s = 1e-6;
  machine.backward.item_rows = 100;
  const CostModel cost = cost_model_of(machine);
  EXPECT_EQ(cost.forward_flops_per_s, 500e12);
  EXPECT_EQ(cost.link_bytes_per_s, 1e9);
  EXPECT_EQ(cost.copy_latency_s, 2e-6);
  EXPECT_EQ(cost.stage_overhead_s, 3e-6);
  EXPECT_EQ(cost.memory_bytes_per_s, 4e9);
  EXPECT_EQ(cost.tile_rows, machine.forward.item_rows);
  EXPECT_NEAR(cost.backward_key_row_s, 1e-9, 1e-20);
  machine.backward.items_by_keys = false;  // then the cost of work tiles is one of query rows
  EXPECT_EQ(cost_model_of(machine).backward_key_row_s, 0);
  machine.head_dim_rates = {{64, 64, 0.5, 0.25}};
  EXPECT_EQ(cost_model_of(machine).head_dim_rates, machine.head_dim_rates);
}

// A cell of fewer columns takes less time, so that the same work tiles and calls cost more of it.
TEST(Machine, FlatRatesAreThoseOfTheirHeadDim) {
  MachineModel machine;
  const CostModel wide = cost_model_of(machine);
  machine.head_dim_v = 64;
  const CostModel narrow_values = cost_model_of(machine);
  machine.head_dim = 64;
  const CostModel narrow = cost_model_of(machine);
  EXPECT_LT(narrow_values.backward_flops_per_s, wide.backward_flops_per_s);
  EXPECT_LT(narrow.backward_flops_per_s, narrow_values.backward_flops_per_s);
  EXPECT_GT(narrow.backward_flops_per_s, 0.95 * wide.backward_flops_per_s);
}

TEST(Machine, ConstantsThatMeanNothingAreRefused) {
  const auto refused = [](const std::string& text, auto spoil) {
    MachineModel machine;
    spoil(machine);
    EXPECT_THAT([&] { validate_machine(machine, "test"); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused("test: machine.forward.flops_per_s must be positive (got 0)", [](auto& m) { m.forward.flops_per_s = 0; });
  refused("test: machine.backward.tail must not be negative (got -1)", [](auto& m) { m.backward.tail = -1; });
  refused("machine.inside.latency_s must not be negative (got nan)",
          [](auto& m) { m.inside.latency_s = std::numeric_limits<double>::quiet_NaN(); });
  refused("machine.memory_bytes_per_s must be positive", [](auto& m) { m.memory_bytes_per_s = 0; });
  refused("test: machine.head_dim_v must be positive (got 0)", [](auto& m) { m.head_dim_v = 0; });
  refused("test: machine.head_dim_rates[1] must have finite, positive factors (got forward=0, backward=",
          [](auto& m) { m.head_dim_rates[1].forward = 0; });
  refused("machine.comm_workers must lie in (0, workers) (got 132, workers=132)", [](auto& m) {
    m.engine = CommEngine::kWorkers;
    m.comm_workers = m.workers;
  });
}

}  // namespace
}  // namespace tangram
