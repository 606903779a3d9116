// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What no measurement gives alone: what rows that are copied and added cost a step, and what one more stage costs.
// Tries multiples of both, and says how the strategies of a measured table come to stand (CSV of bench_dist_gpu):
//
//   fit_steps docs/results/data/strategies_h200.csv
#include <fmt/format.h>

#include <exception>

#include "plan/measured_steps.hpp"

namespace {

using namespace tangram;

void print_agreement(const std::vector<test::MeasuredCell>& cells, const char* name, double value,
                     const MachineModel& machine) {
  const test::Agreement found = test::agreement(cells, machine);
  fmt::print("{},{:.3g},{},{},{},{},{:.3f}\n", name, value, found.right, found.total, found.right_apart,
             found.total_apart, found.ratio);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: fit_steps CSV\n");
    return 2;
  }
  try {
    const auto cells = test::read_measured_steps(argv[1]);
    fmt::print("constant,value,in_order,pairs,in_order_5_percent_apart,pairs_5_percent_apart,predicted_to_measured\n");
    for (const double factor : {0.5, 0.6, 0.7, 0.8, 1.0, 1.2, 1.5, 1.75, 2.0, 4.0}) {
      MachineModel machine;
      machine.memory_bytes_per_s *= factor;
      print_agreement(cells, "memory_bytes_per_s", machine.memory_bytes_per_s, machine);
    }
    for (const double factor : {0.0, 0.25, 0.5, 1.0, 2.0, 4.0}) {
      MachineModel machine;
      machine.stage_overhead_s *= factor;
      print_agreement(cells, "stage_overhead_s", machine.stage_overhead_s, machine);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "fit_steps: {}\n", error.what());
    return 1;
  }
  return 0;
}
