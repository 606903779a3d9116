// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/machine.hpp"

#include <algorithm>
#include <cmath>

#include "machine/head_dim_rates.hpp"
#include "machine/kernel_work.hpp"

namespace tangram {

namespace {

/// FLOPs a second by visible area. A kernel's own rate counts computed tiles, without the cost of work tiles and calls.
double flat_rate(const KernelModel& kernel, int workers, double flops) {
  constexpr int64_t kRows = 16384;
  constexpr double kHeads = 64;
  const KernelWork work = of_one_call(count_work(AttnSlice::causal({0, kRows}, {0, kRows}), kernel), kRows, kernel);
  const double rate = work.area * kHeads * flops / call_seconds(kernel, work, {kHeads, flops, workers});
  const double unit = std::pow(10, std::floor(std::log10(rate)) - 2);
  return std::round(rate / unit) * unit;
}

}  // namespace

CostModel cost_model_of(const MachineModel& machine) {
  const auto flops = [&](AttnPass pass) { return flops_per_cell(machine.head_dim, machine.head_dim_v, pass); };
  return {.forward_flops_per_s = flat_rate(machine.forward, machine.workers, flops(AttnPass::kForward)),
          .backward_flops_per_s = flat_rate(machine.backward, machine.workers, flops(AttnPass::kBackward)),
          .link_bytes_per_s = machine.inside.bytes_per_s,
          .copy_latency_s = machine.inside.latency_s,
          .stage_overhead_s = machine.stage_overhead_s,
          .tile_rows = machine.forward.item_rows,
          .memory_bytes_per_s = machine.memory_bytes_per_s,
          .backward_key_row_s = machine.backward.items_by_keys
                                    ? machine.backward.item_s / machine.backward.item_rows / machine.workers
                                    : 0,
          .head_dim_rates = machine.head_dim_rates};
}

CostModel with_nodes(const CostModel& cost, const MachineModel& machine) {
  CostModel result = cost;
  result.ranks_per_node = machine.ranks_per_node;
  const double cards =
      machine.nics_per_node > 0 ? static_cast<double>(machine.nics_per_node) / machine.ranks_per_node : 1;
  result.between_bytes_per_s = machine.between.bytes_per_s * cards * machine.spine;
  result.between_message_s = machine.between.latency_s;
  // Where host threads transfer, multiprocessors have no part in it.
  const bool takes_sms = machine.engine != CommEngine::kHostThreads;
  result.between_sms = takes_sms ? std::min(machine.between_sms, machine.workers - 1) : 0;
  result.sms = machine.workers;
  return result;
}

}  // namespace tangram
