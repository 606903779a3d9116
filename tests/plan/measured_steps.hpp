// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Measured steps of the strategies (CSV of bench_dist_gpu) beside what a machine predicts of them.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "reference/mask_cases.hpp"
#include "support/csv.hpp"
#include "tangram/simulate.hpp"

namespace tangram::test {

/// A mask over a number of GPUs, and what each strategy took.
struct MeasuredCell {
  reference::MaskCase mask;
  DistAttnConfig config;
  std::map<std::string, double> seconds;
};

/// The strategy that a row is of, as simulate names it: Tangram in one launch, others with the layout of heads kept.
/// Empty for other ways to run one.
inline std::string simulated_strategy(const std::string& overlap) {
  if (overlap == "single:1") return "tangram";
  const std::string name = overlap.substr(0, overlap.find(':'));
  const bool by_heads = name == "ulysses" || name == "hcms" || name == "usp" || name == "loong_train";
  const bool plain = name == "ring" || name == "all_gather" || name == "hybrid_cp";
  return (by_heads && overlap == name + ":keep") || (plain && overlap == name) ? name : "";
}

/// Whole steps over copy engines, of masks of dist_masks.json.
inline std::vector<MeasuredCell> read_measured_steps(const std::string& path) {
  std::map<std::string, reference::MaskCase> masks;
  for (reference::MaskCase& c : reference::load_mask_cases("dist_masks.json")) masks.emplace(c.name, std::move(c));
  std::map<std::tuple<std::string, std::string>, MeasuredCell> cells;
  for (const support::CsvRow& row : support::read_csv(path)) {
    const std::string strategy = simulated_strategy(row.at("overlap"));
    if (strategy.empty() || row.at("mode") != "eager" || row.at("transport") != "copy_engine" ||
        row.at("pass") != "both") {
      continue;
    }
    const std::string mask = row.at("mask") + ":" + row.at("seqlen");
    MeasuredCell& cell = cells[{mask, row.at("gpus")}];
    cell.mask = masks.at(mask);
    cell.config.cp_size = std::stoi(row.at("gpus"));
    const int dim = std::stoi(row.at("head_dim"));
    cell.config.heads = {std::stoi(row.at("heads_q")), std::stoi(row.at("heads_kv")), dim, dim, DType::kBFloat16};
    cell.seconds[strategy] = std::stod(row.at("time_ms")) * 1e-3;
  }
  std::vector<MeasuredCell> result;
  for (auto& [key, cell] : cells) result.push_back(std::move(cell));
  return result;
}

/// Count over the pairs of strategies of a cell that a prediction orders (by more than 0.1 %).
struct Agreement {
  int right = 0, total = 0;
  int right_apart = 0, total_apart = 0;  // measured at least 5 % apart
  double ratio = 0;                      // predicted to measured, in the median

  double share() const { return static_cast<double>(right) / total; }
  double share_apart() const { return static_cast<double>(right_apart) / total_apart; }
};

inline Agreement agreement(const std::vector<MeasuredCell>& cells, const MachineModel& machine) {
  Agreement result;
  std::vector<double> ratios;
  for (const MeasuredCell& cell : cells) {
    const Mask mask(cell.mask.seqlen, cell.mask.seqlen, cell.mask.slices);
    std::vector<std::pair<double, double>> times;  // predicted, measured
    for (const auto& [strategy, seconds] : cell.seconds) {
      const StrategyPrediction prediction = simulate(mask, cell.config, machine, strategy);
      if (!prediction.infeasible.empty()) continue;
      times.emplace_back(prediction.step_s(), seconds);
      ratios.push_back(prediction.step_s() / seconds);
    }
    for (size_t a = 0; a < times.size(); ++a) {
      for (size_t b = a + 1; b < times.size(); ++b) {
        const auto& [predicted_a, measured_a] = times[a];
        const auto& [predicted_b, measured_b] = times[b];
        if (std::abs(predicted_a - predicted_b) <= 1e-3 * std::min(predicted_a, predicted_b)) continue;
        const bool right = (predicted_a < predicted_b) == (measured_a < measured_b);
        const bool apart = std::max(measured_a, measured_b) >= 1.05 * std::min(measured_a, measured_b);
        ++result.total;
        result.right += right;
        result.total_apart += apart;
        result.right_apart += apart && right;
      }
    }
  }
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2), ratios.end());
  result.ratio = ratios[ratios.size() / 2];
  return result;
}

}  // namespace tangram::test
