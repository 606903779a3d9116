// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// simulate: checks, and the table of strategies.
#include "tangram/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/require.hpp"
#include "plan/simulate/strategies.hpp"
#include "plan/validate.hpp"
#include "tangram/plan.hpp"

namespace tangram {

namespace {

struct SimulatedStrategy {
  std::string_view name;
  StrategyPrediction (*simulate)(const sim::SimInput&);
};

template <Strategy kName>
StrategyPrediction on_grid(const sim::SimInput& input) {
  return sim::simulate_grid(input, kName);
}

constexpr std::array kStrategies{
    SimulatedStrategy{"tangram", sim::simulate_tangram},
    SimulatedStrategy{"tangram_hierarchical", sim::simulate_tangram_hierarchical},
    SimulatedStrategy{"ring", on_grid<Strategy::kRing>},
    SimulatedStrategy{"ulysses", on_grid<Strategy::kUlysses>},
    SimulatedStrategy{"all_gather", on_grid<Strategy::kAllGather>},
    SimulatedStrategy{"hcms", on_grid<Strategy::kHcms>},
    SimulatedStrategy{"usp", on_grid<Strategy::kUsp>},
    SimulatedStrategy{"loong_train", on_grid<Strategy::kLoongTrain>},
    SimulatedStrategy{"hybrid_cp", on_grid<Strategy::kHybridCp>},
};

void require_positive(double value, const char* name) {
  require(std::isfinite(value) && value > 0, "simulate: machine.{} must be positive (got {})", name, value);
}

void require_not_negative(double value, const char* name) {
  require(std::isfinite(value) && value >= 0, "simulate: machine.{} must not be negative (got {})", name, value);
}

void validate_kernel(const KernelModel& kernel, const std::string& name) {
  require_positive(kernel.tile_rows, (name + ".tile_rows").c_str());
  require_positive(kernel.tile_cols, (name + ".tile_cols").c_str());
  require_positive(kernel.item_rows, (name + ".item_rows").c_str());
  require_positive(kernel.flops_per_s, (name + ".flops_per_s").c_str());
  require_not_negative(kernel.masked_tile_cost, (name + ".masked_tile_cost").c_str());
  require_not_negative(kernel.item_s, (name + ".item_s").c_str());
  require_not_negative(kernel.call_s, (name + ".call_s").c_str());
  require_not_negative(kernel.tail, (name + ".tail").c_str());
}

void validate_machine(const MachineModel& machine) {
  validate_kernel(machine.forward, "forward");
  validate_kernel(machine.backward, "backward");
  require_positive(machine.workers, "workers");
  require_positive(machine.ranks_per_node, "ranks_per_node");
  require_positive(machine.devices_per_node, "devices_per_node");
  require_positive(machine.inside.bytes_per_s, "inside.bytes_per_s");
  require_positive(machine.between.bytes_per_s, "between.bytes_per_s");
  require_not_negative(machine.inside.latency_s, "inside.latency_s");
  require_not_negative(machine.between.latency_s, "between.latency_s");
  require_not_negative(machine.stage_overhead_s, "stage_overhead_s");
  require_positive(machine.memory_bytes_per_s, "memory_bytes_per_s");
  if (machine.engine != CommEngine::kWorkers) return;
  require(0 < machine.comm_workers && machine.comm_workers < machine.workers,
          "simulate: machine.comm_workers must lie in (0, workers) (got {}, workers={})", machine.comm_workers,
          machine.workers);
  require_positive(machine.worker_link_bytes_per_s, "worker_link_bytes_per_s");
}

}  // namespace

CostModel cost_model_of(const MachineModel& machine) {
  return {.forward_flops_per_s = machine.forward.flops_per_s,
          .backward_flops_per_s = machine.backward.flops_per_s,
          .link_bytes_per_s = machine.inside.bytes_per_s,
          .copy_latency_s = machine.inside.latency_s,
          .stage_overhead_s = machine.stage_overhead_s,
          .tile_rows = machine.forward.item_rows,
          .memory_bytes_per_s = machine.memory_bytes_per_s,
          .backward_key_row_s = machine.backward.items_by_keys
                                    ? machine.backward.item_s / machine.backward.item_rows / machine.workers
                                    : 0};
}

std::vector<std::string_view> simulated_strategies() {
  std::vector<std::string_view> names;
  for (const SimulatedStrategy& strategy : kStrategies) names.push_back(strategy.name);
  return names;
}

namespace {

// The strategy that plans would have, with its layout.
StrategyPrediction simulate_chosen(const Mask& mask, const DistAttnConfig& calibrated, const MachineModel& machine) {
  StrategyPrediction prediction;
  if (calibrated.cp_size > sim::kMaxPlannedRanks) {
    prediction.infeasible = fmt::format("auto is simulated up to {} ranks", sim::kMaxPlannedRanks);
    return prediction;
  }
  DistAttnConfig config = calibrated;
  config.strategy = {};
  config.strategy.name = Strategy::kAuto;
  config.strategy = make_plan(mask, config).config.strategy;
  prediction = simulate(mask, config, machine, to_string(config.strategy.name));
  prediction.chosen = describe(config.strategy);
  return prediction;
}

}  // namespace

StrategyPrediction simulate(const Mask& mask, const DistAttnConfig& config, const MachineModel& machine,
                            std::string_view strategy) {
  const auto found = std::find_if(kStrategies.begin(), kStrategies.end(),
                                  [&](const SimulatedStrategy& candidate) { return candidate.name == strategy; });
  if (found == kStrategies.end() && strategy != to_string(Strategy::kAuto)) {
    std::string names;
    for (const SimulatedStrategy& known : kStrategies) names += std::string(known.name) + ", ";
    require(false, "simulate: strategy must be one of {}auto (got '{}')", names, strategy);
  }
  validate_machine(machine);
  DistAttnConfig calibrated = config;
  calibrated.cost = cost_model_of(machine);
  DistAttnConfig of_all = calibrated;
  of_all.strategy = {};  // may hold parameters for several of the strategies; those of this one are checked with it
  validate_plan_request(mask, of_all, "simulate");
  StrategyPrediction prediction = found == kStrategies.end() ? simulate_chosen(mask, calibrated, machine)
                                                             : found->simulate({mask, calibrated, machine});
  prediction.strategy = strategy;
  return prediction;
}

}  // namespace tangram
