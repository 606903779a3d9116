// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Predictions of plans and of the simulator, case by case: what tests/data/golden/predictions.csv holds. The constants
// of machines stand here, so that what is measured anew changes nothing.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"
#include "tangram/simulate.hpp"

namespace tangram::testing {

struct Prediction {
  std::string name;
  double forward_s = 0;
  double backward_s = 0;
  double exposed_s = 0;
};

/// A link of which each transfer shows.
inline DistAttnConfig with_slow_links(DistAttnConfig config) {
  config.cost.link_bytes_per_s = 5e9;
  config.reduce_dtype = DType::kBFloat16;
  return config;
}

inline std::vector<std::pair<std::string, Mask>> predicted_masks() {
  constexpr int64_t kRows = 8192;
  std::vector<int64_t> cu_seqlens = {0};
  for (int64_t length = 16; cu_seqlens.back() + length < kRows; length = length * 5 / 4 + 16) {
    cu_seqlens.push_back(cu_seqlens.back() + length);
  }
  cu_seqlens.push_back(kRows);
  return {{"full", full_mask(kRows, kRows)},
          {"causal", causal_mask(kRows, kRows)},
          {"documents", varlen_mask(cu_seqlens, true)},
          {"window", sliding_window_mask(kRows, {kRows / 16, 0})}};
}

inline Prediction prediction_of(std::string name, const Mask& mask, const DistAttnConfig& config) {
  const PredictedTime time = make_plan(mask, config).predicted;
  return {std::move(name), time.forward_s, time.backward_s, time.exposed_s};
}

inline void predict_plans(const std::string& name, const Mask& mask, DistAttnConfig config,
                          std::vector<Prediction>& predictions) {
  for (const Strategy strategy : {Strategy::kTangram, Strategy::kUlysses, Strategy::kHcms, Strategy::kRing,
                                  Strategy::kAllGather, Strategy::kUsp, Strategy::kLoongTrain, Strategy::kHybridCp}) {
    if (strategy == Strategy::kLoongTrain && config.cp_size < 4) continue;
    if (strategy == Strategy::kUsp && config.cp_size < 4) continue;
    config.strategy.name = strategy;
    const std::string of_strategy = name + " " + std::string(to_string(strategy));
    predictions.push_back(prediction_of(of_strategy, mask, config));
    predictions.push_back(prediction_of(of_strategy + " slow", mask, with_slow_links(config)));
  }
  config.strategy.name = Strategy::kTangram;
  config.overlap.num_stages_fwd = 2;
  config.overlap.num_stages_bwd = 3;
  predictions.push_back(prediction_of(name + " stages", mask, with_slow_links(config)));
  config.overlap.keep_remote_kv = true;
  predictions.push_back(prediction_of(name + " kept", mask, with_slow_links(config)));
  config.overlap = {};
  if (config.cp_size == 1 || config.cp_size > 8) return;
  for (const Movement movement : {Movement::kQo, Movement::kAuto, Movement::kNetworkFlow}) {
    config.movement.algorithm = movement;
    predictions.push_back(prediction_of(name + " " + std::string(to_string(movement)), mask, with_slow_links(config)));
  }
}

inline MachineModel machine_with(CommEngine engine) {
  MachineModel machine;
  machine.forward = {64, 64, 128, 685e12, 0.17, 0.96e-6, 7.3e-6, 0.43};
  machine.backward = {64, 64, 128, 636e12, 0, 11.6e-6, 1.9e-6, 0.52, true};
  machine.workers = 132;
  machine.inside = {390e9, 3e-6};
  machine.between = {50e9, 10e-6};
  machine.stage_overhead_s = 8e-6;
  machine.memory_bytes_per_s = 3.5e12;
  machine.head_dim_rates.clear();
  machine.comm_workers = 24;
  machine.worker_link_bytes_per_s = 11.5e9;
  machine.engine = engine;
  if (engine != CommEngine::kHostThreads) return machine;
  machine.workers = 4;
  machine.forward = {64, 64, 64, 40e9, 0.1, 1e-6, 5e-6, 0.3};
  machine.backward = {64, 64, 64, 30e9, 0.1, 1e-6, 5e-6, 0.3};
  machine.inside = {4e9, 2e-6};
  machine.memory_bytes_per_s = 2e10;
  return machine;
}

inline void predict_simulations(const std::string& name, const Mask& mask, const DistAttnConfig& config,
                                std::vector<Prediction>& predictions) {
  for (const CommEngine engine : {CommEngine::kCopyEngine, CommEngine::kWorkers, CommEngine::kHostThreads}) {
    const MachineModel machine = machine_with(engine);
    for (const std::string_view strategy : simulated_strategies()) {
      const StrategyPrediction time = simulate(mask, config, machine, strategy);
      predictions.push_back(
          {name + " simulated " + std::string(strategy) + " " + std::to_string(static_cast<int>(engine)),
           time.forward_s, time.backward_s, time.exposed_s});
    }
  }
}

/// 8,192 rows, 64 heads.
inline std::vector<Prediction> all_predictions() {
  std::vector<Prediction> predictions;
  for (const auto& [mask_name, mask] : predicted_masks()) {
    for (const int cp_size : {1, 2, 4, 8, 64}) {
      DistAttnConfig config;
      config.cp_size = cp_size;
      config.cost = {640e12, 560e12, 390e9, 3e-6, 8e-6, 128, 2.0e12, 3.0e-10, {}};
      config.heads = {64, 64, 128, 64, DType::kBFloat16};
      const std::string name = mask_name + " " + std::to_string(cp_size);
      predict_plans(name, mask, config, predictions);
      if (cp_size == 4 || cp_size == 64) predict_simulations(name, mask, config, predictions);
    }
  }
  return predictions;
}

}  // namespace tangram::testing
