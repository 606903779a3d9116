// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Uses every layer that a user calls, so that a missing symbol or header shows at link time.
#include <cstdio>
#include <tangram/mask_builders.hpp>
#include <tangram/tangram.hpp>

int main() {
  const tangram::Mask mask = tangram::causal_mask(1024, 1024);
  tangram::DistAttnConfig config;
  config.cp_size = 4;
  const tangram::Plan plan = tangram::make_plan(mask, config);
  std::printf("tangram %s: balance %.3f, %lld rows moved\n", tangram::kVersion, plan.balance(),
              static_cast<long long>(plan.rows_moved()));
  int64_t area = 0;
  for (const tangram::RankPlan& rank : plan.rank_totals()) area += rank.area;
  return area == mask.area() ? 0 : 1;
}
