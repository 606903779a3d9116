// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Time of transfers, and how the steps of a rank play out.
#include <algorithm>

#include "plan/cost.hpp"
#include "plan/dispatch.hpp"
#include "plan/grid/grid_bytes.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

LinkLoad& LinkLoad::operator+=(const LinkLoad& other) {
  bytes += other.bytes;
  copies += other.copies;
  return *this;
}

Transfer& Transfer::operator+=(const Transfer& other) {
  inside += other.inside;
  between += other.between;
  return *this;
}

Transfer scaled(const Transfer& transfer, double bytes_factor) {
  Transfer result = transfer;
  result.inside.bytes *= bytes_factor;
  result.between.bytes *= bytes_factor;
  return result;
}

double between_rate(const MachineModel& machine) { return with_nodes({}, machine).between_bytes_per_s; }

double transfer_seconds(const MachineModel& machine, const Transfer& transfer) {
  double inside_rate = machine.inside.bytes_per_s;
  if (machine.engine == CommEngine::kWorkers) {
    inside_rate = std::min(inside_rate, machine.comm_workers * machine.worker_link_bytes_per_s);
  }
  const double inside = transfer.inside.bytes / inside_rate + transfer.inside.copies * machine.inside.latency_s;
  const double between =
      transfer.between.bytes / between_rate(machine) + transfer.between.copies * machine.between.latency_s;
  return std::max(inside, between);
}

bool hides_transfers(const MachineModel& machine) { return machine.engine != CommEngine::kHostThreads; }

double copy_seconds(const MachineModel& machine, double bytes) { return 2 * bytes / machine.memory_bytes_per_s; }

double packing_seconds(const MachineModel& machine, double bytes) {
  // What host threads move in a second was measured with packing and adding around it.
  return machine.engine == CommEngine::kHostThreads ? 0 : bytes / machine.memory_bytes_per_s;
}

double accumulate_seconds(const SimInput& input, AttnPass pass, int64_t q_rows, double num_heads) {
  const int64_t bytes = further_call_bytes(input.config.heads, pass, q_rows, static_cast<int64_t>(num_heads));
  return static_cast<double>(bytes) / input.machine.memory_bytes_per_s;
}

double rounding_seconds(const SimInput& input, AttnPass pass, int64_t q_rows, double num_heads) {
  const int64_t bytes = rounding_bytes(input.config.heads, pass, q_rows, static_cast<int64_t>(num_heads));
  return static_cast<double>(bytes) / input.machine.memory_bytes_per_s;
}

double balance_of(const SimInput& input, const std::vector<std::vector<AttnSlice>>& slices) {
  int64_t largest = 0;
  for (const std::vector<AttnSlice>& own : slices) {
    int64_t sum = 0;
    for (const AttnSlice& slice : own) sum += area(slice);
    largest = std::max(largest, sum);
  }
  const double mean = static_cast<double>(input.mask.area()) / static_cast<double>(slices.size());
  return mean > 0 ? static_cast<double>(largest) / mean : 1;
}

void SlowestPass::take(const RankTime& time) {
  compute_s = std::max(compute_s, time.busy_s);
  if (time.total_s <= total_s) return;
  total_s = time.total_s;
  exposed_s = time.exposed_s();
}

void SlowestPass::take(const std::vector<RankTime>& times) {
  for (const RankTime& time : times) take(time);
}

void set_times(StrategyPrediction& prediction, const SlowestPass& forward, const SlowestPass& backward) {
  prediction.forward_s = forward.total_s;
  prediction.backward_s = backward.total_s;
  prediction.compute_s = forward.compute_s + backward.compute_s;
  prediction.exposed_s = forward.exposed_s + backward.exposed_s;
}

}  // namespace tangram::sim
