// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans of the forests of tests/data/prefix_trees.json, a CSV line each: processor milliseconds of make_plan, best of
// COUNT, largest area over the mean, remote rows over rows.
//
//   prefix_trees_bench RANKS COUNT
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "support/prefix_trees.hpp"
#include "tangram/plan.hpp"

int main(int argc, char** argv) {
  using namespace tangram;
  if (argc != 3) return 2;
  DistAttnConfig config;
  config.cp_size = std::atoi(argv[1]);
  config.heads = {32, 8, 128, 128, DType::kBFloat16};
  fmt::print("forest,rows,ms,balance,moved\n");
  for (const test_support::Forest& forest : test_support::forests()) {
    const Mask mask = test_support::mask_of(forest, config.cp_size);
    double best = 1e9;
    Plan plan;
    for (int n = 0; n < std::atoi(argv[2]); ++n) {
      const std::clock_t begin = std::clock();
      plan = make_plan(mask, config);
      best = std::min(best, 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    const double moved = static_cast<double>(plan.rows_moved()) / static_cast<double>(mask.seqlen_q());
    fmt::print("{},{},{:.1f},{:.4f},{:.3f}\n", forest.name, mask.seqlen_q(), best, plan.balance(), moved);
  }
}
