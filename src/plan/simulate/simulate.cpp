// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// simulate: checks, and the table of strategies.
#include "tangram/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/require.hpp"
#include "machine/validate.hpp"
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
    SimulatedStrategy{"tangram_nodes", sim::simulate_tangram_nodes},
    SimulatedStrategy{"ring", on_grid<Strategy::kRing>},
    SimulatedStrategy{"ulysses", on_grid<Strategy::kUlysses>},
    SimulatedStrategy{"all_gather", on_grid<Strategy::kAllGather>},
    SimulatedStrategy{"hcms", on_grid<Strategy::kHcms>},
    SimulatedStrategy{"usp", on_grid<Strategy::kUsp>},
    SimulatedStrategy{"loong_train", on_grid<Strategy::kLoongTrain>},
    SimulatedStrategy{"hybrid_cp", on_grid<Strategy::kHybridCp>},
};

}  // namespace

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
  const int per_node = machine.ranks_per_node;
  const bool has_nodes = per_node < config.cp_size && config.cp_size % per_node == 0;
  if (has_nodes) config.cost = with_nodes(config.cost, machine);
  config.strategy = make_plan(mask, config).config.strategy;
  const bool knows_nodes = has_nodes && config.strategy.name == Strategy::kTangram;
  prediction = simulate(mask, config, machine, knows_nodes ? "tangram_nodes" : to_string(config.strategy.name));
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
  validate_machine(machine, "simulate");
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
