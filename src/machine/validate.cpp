// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "machine/validate.hpp"

#include <cmath>
#include <string>

#include "core/require.hpp"
#include "machine/head_dim_rates.hpp"

namespace tangram {

namespace {

struct Checks {
  std::string_view function;

  void positive(double value, const std::string& name) const {
    require(std::isfinite(value) && value > 0, "{}: machine.{} must be positive (got {})", function, name, value);
  }
  void not_negative(double value, const std::string& name) const {
    require(std::isfinite(value) && value >= 0, "{}: machine.{} must not be negative (got {})", function, name, value);
  }
  void kernel(const KernelModel& kernel, const std::string& name) const {
    positive(kernel.tile_rows, name + ".tile_rows");
    positive(kernel.tile_cols, name + ".tile_cols");
    positive(kernel.item_rows, name + ".item_rows");
    positive(kernel.flops_per_s, name + ".flops_per_s");
    not_negative(kernel.masked_tile_cost, name + ".masked_tile_cost");
    not_negative(kernel.item_s, name + ".item_s");
    not_negative(kernel.call_s, name + ".call_s");
    not_negative(kernel.tail, name + ".tail");
  }
};

}  // namespace

void validate_machine(const MachineModel& machine, std::string_view function) {
  const Checks check{function};
  check.kernel(machine.forward, "forward");
  check.kernel(machine.backward, "backward");
  check.positive(machine.head_dim, "head_dim");
  check.positive(machine.head_dim_v, "head_dim_v");
  validate_head_dim_rates(machine.head_dim_rates, function, "machine.head_dim_rates");
  check.positive(machine.workers, "workers");
  check.positive(machine.ranks_per_node, "ranks_per_node");
  check.positive(machine.devices_per_node, "devices_per_node");
  check.positive(machine.inside.bytes_per_s, "inside.bytes_per_s");
  check.positive(machine.between.bytes_per_s, "between.bytes_per_s");
  check.not_negative(machine.inside.latency_s, "inside.latency_s");
  check.not_negative(machine.between.latency_s, "between.latency_s");
  check.not_negative(machine.nics_per_node, "nics_per_node");
  require(machine.spine > 0 && machine.spine <= 1, "{}: machine.spine must lie in (0, 1] (got {})", function,
          machine.spine);
  check.not_negative(machine.between_sms, "between_sms");
  check.not_negative(machine.stage_overhead_s, "stage_overhead_s");
  check.positive(machine.memory_bytes_per_s, "memory_bytes_per_s");
  if (machine.engine != CommEngine::kWorkers) return;
  require(0 < machine.comm_workers && machine.comm_workers < machine.workers,
          "{}: machine.comm_workers must lie in (0, workers) (got {}, workers={})", function, machine.comm_workers,
          machine.workers);
  check.positive(machine.worker_link_bytes_per_s, "worker_link_bytes_per_s");
}

}  // namespace tangram
