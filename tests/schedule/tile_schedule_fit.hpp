// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Cost factors of schedule candidates beside their makespans, from measured times, as in kScheduleCandidates
// (tile_schedule_candidates.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "schedule/tile_schedule_candidates.hpp"
#include "schedule/tile_schedule_cases.hpp"
#include "support/csv.hpp"

namespace tangram::test {

/// One mask: its measured candidates, how long each takes beside the fastest measured schedule, and the logarithm of
/// its makespan.
struct MeasuredMask {
  struct Try {
    size_t form = 0;
    double log_steps = 0;
    double slower = 1;
  };
  std::string name;
  schedule::ScheduleClass kind{};
  bool few_heads = false;
  std::vector<Try> tries;
};

/// Equal for schedules of equal work tiles in equal order, which candidates of different names may have.
inline uint64_t hash_of_work_tiles(const schedule::Extents& extents, int num_heads_kv,
                                   const schedule::TileSchedule& how) {
  uint64_t hash = how.heads_innermost ? 1 : 2;
  schedule::for_each_work_tile(extents, num_heads_kv, how, [&](size_t i, int head, int head_split, int head_splits) {
    for (const uint64_t value :
         {uint64_t{i}, static_cast<uint64_t>(head), static_cast<uint64_t>(head_split * 64 + head_splits)}) {
      hash = (hash ^ value) * 0x100000001b3ull;
    }
  });
  return hash;
}

/// Masks with the times of calls of one figure, `backward` or `backward_deterministic`, of a table of
/// benchmarks/schedule/time_tile_schedules.
inline std::vector<MeasuredMask> read_measured_masks(const std::string& cases_path, const std::string& table_path,
                                                     const std::string& figure,
                                                     const schedule::WorkTileCosts& costs = {}) {
  std::map<std::string, std::map<std::string, double>> seconds;  // by mask and schedule
  for (const support::CsvRow& row : support::read_csv(table_path)) {
    if (row.at("figure") == figure) seconds[row.at("mask")][row.at("strategy")] = std::stod(row.at("value"));
  }
  std::vector<MeasuredMask> masks;
  for (const ScheduleCase& of : read_schedule_cases(cases_path)) {
    const std::map<std::string, double>& measured = seconds.at(of.name);
    const ScheduleProblem problem(of);
    const schedule::Setting in = problem.setting();
    const bool same_begin = schedule::choose_direction(problem.extents).same_begin;
    double fastest = std::numeric_limits<double>::infinity();
    std::map<uint64_t, double> by_work_tiles;
    for (const auto& [text, s] : measured) {
      fastest = std::min(fastest, s);
      if (text.find("_e") != std::string::npos) continue;  // its last tiles in other pieces, which no form has any more
      by_work_tiles[hash_of_work_tiles(problem.extents, of.shape.num_heads_kv, schedule_from_text(text))] = s;
    }
    MeasuredMask& mask = masks.emplace_back();
    mask.name = of.name;
    mask.kind = schedule::kind_of(problem.extents, problem.spread);
    mask.few_heads = schedule::has_few_heads(of.shape);
    for (size_t form = 0; form < schedule::kScheduleCandidates.size(); ++form) {
      if (schedule::kScheduleCandidates[form].most_share > 0 && figure != "backward")
        continue;  // not for deterministic calls
      if (schedule::kScheduleCandidates[form].cached && mask.kind != schedule::ScheduleClass::kNested)
        continue;  // hardly measured there
      auto how = schedule::schedule_of(schedule::kScheduleCandidates[form], problem.extents, of.shape, in.gpu,
                                       schedule::even_steps(in));
      if (!how) continue;
      if (figure != "backward" &&
          schedule::waits_in_sections(schedule::kScheduleCandidates[form], *how, of.shape, schedule::even_steps(in))) {
        continue;
      }
      how->heads_innermost = schedule::walks_heads_inside(*how, same_begin, problem.spread, problem.shape);
      const auto found = by_work_tiles.find(hash_of_work_tiles(problem.extents, of.shape.num_heads_kv, *how));
      if (found == by_work_tiles.end()) continue;
      mask.tries.push_back({form, std::log(schedule::makespan(in, *how, costs)), found->second / fastest});
    }
  }
  return masks;
}

/// For each mask that one set of factors decides: time of its chosen schedule relative to the fastest one.
inline std::vector<double> slower_than_fastest(const std::vector<MeasuredMask>& masks,
                                               const std::vector<double>& cost_factor) {
  std::vector<double> result;
  for (const MeasuredMask& mask : masks) {
    double least = std::numeric_limits<double>::infinity(), slower = 1;
    for (const MeasuredMask::Try& one : mask.tries) {
      if (cost_factor[one.form] == 0) continue;
      const double cost = one.log_steps + std::log(cost_factor[one.form]);
      if (cost < least) std::tie(least, slower) = std::pair(cost, one.slower);
    }
    result.push_back(slower);
  }
  return result;
}

/// Factors with the least loss: the mean of what a choice by makespan x slowness costs, what is above 5 % counted four
/// times, as if makespans were known to 1 % only, so that no close decision is fitted.
class SlownessFit {
 public:
  explicit SlownessFit(std::vector<MeasuredMask> masks) : masks_(std::move(masks)) {}

  /// By index into kScheduleCandidates; 0: without the form the loss is hardly greater.
  std::vector<double> run() const {
    std::vector<double> best = descend(std::vector<double>(schedule::kScheduleCandidates.size(), 1));
    for (bool dropped = true; dropped;) {
      dropped = false;
      double least = loss(best) + kWorthwhile;
      std::vector<double> without;
      for (size_t form = 1; form < best.size(); ++form) {
        if (best[form] == 0) continue;
        std::vector<double> tried = best;
        tried[form] = 0;
        tried = descend(tried);
        if (const double l = loss(tried); l < least) {
          least = l;
          without = tried;
        }
      }
      if (!without.empty()) {
        best = without;
        dropped = true;
      }
    }
    return best;
  }

  double loss(const std::vector<double>& cost_factor) const {
    constexpr double kKnownTo = 0.01;
    std::vector<double> logs;
    for (const double factor : cost_factor) logs.push_back(std::log(factor));
    double sum = 0;
    for (const MeasuredMask& mask : masks_) {
      double least = std::numeric_limits<double>::infinity();
      for (const MeasuredMask::Try& one : mask.tries) {
        if (cost_factor[one.form] > 0) least = std::min(least, one.log_steps + logs[one.form]);
      }
      double weights = 0, weighted = 0;
      for (const MeasuredMask::Try& one : mask.tries) {
        if (cost_factor[one.form] == 0) continue;
        const double weight = std::exp((least - one.log_steps - logs[one.form]) / kKnownTo);
        const double lost = one.slower - 1;
        weights += weight;
        weighted += weight * (lost + 3 * std::max(0.0, lost - 0.05));
      }
      sum += weights == 0 ? 1 : weighted / weights;
    }
    return sum / static_cast<double>(masks_.size());
  }

 private:
  static constexpr double kWorthwhile = 0.0005;  // of the loss

  /// One factor after the other to where the loss is least; the first form's stays.
  std::vector<double> descend(std::vector<double> cost_factor) const {
    double least = loss(cost_factor);
    for (bool better = true; better;) {
      better = false;
      for (size_t form = 1; form < cost_factor.size(); ++form) {
        if (cost_factor[form] == 0) continue;
        double best = cost_factor[form];
        for (int half = 150; half <= 240; ++half) {
          cost_factor[form] = half / 200.0;
          if (const double l = loss(cost_factor); l < least - 1e-9) {
            least = l;
            best = cost_factor[form];
            better = true;
          }
        }
        cost_factor[form] = best;
      }
    }
    return cost_factor;
  }

  std::vector<MeasuredMask> masks_;
};

/// The masks of a kind whose work tiles have many heads: deterministic calls of others take another way.
inline std::vector<MeasuredMask> of_kind(const std::vector<MeasuredMask>& masks, schedule::ScheduleClass kind,
                                         bool deterministic) {
  std::vector<MeasuredMask> result;
  for (const MeasuredMask& mask : masks) {
    if (mask.kind == kind && !(deterministic && mask.few_heads)) result.push_back(mask);
  }
  return result;
}

}  // namespace tangram::test
