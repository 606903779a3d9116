// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The default machine orders measured strategies as they were measured (docs/results/data/strategies_h200.csv), and the
// constants that only steps can tell (benchmarks/machine/fit_steps.cpp) are where that is best.
#include "plan/measured_steps.hpp"

#include <gtest/gtest.h>

#include "support/sample.hpp"

namespace tangram {
namespace {

TEST(MeasuredSteps, StrategiesComeInTheOrderInWhichTheyWereMeasured) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  const auto cells = test::read_measured_steps(support::result_path("strategies_h200.csv"));
  EXPECT_EQ(cells.size(), 26u);
  const test::Agreement found = test::agreement(cells, {});
  EXPECT_GE(found.share(), 0.92);
  EXPECT_GE(found.share_apart(), 0.98);
  EXPECT_NEAR(found.ratio, 1, 0.1);
  for (const double factor : {0.5, 2.0}) {
    MachineModel machine;
    machine.memory_bytes_per_s *= factor;
    EXPECT_LE(test::agreement(cells, machine).share(), found.share() + 0.01) << factor;
  }
}

}  // namespace
}  // namespace tangram
