// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Fits the cost factors of schedule candidates to tables of time_tile_schedules, of default and of deterministic calls.
// Prints them as in kScheduleCandidates of src/schedule/tile_schedule_candidates.hpp, and what choosing by them loses;
// then what is lost with other costs of work tiles:
//
//   fit_tile_schedules tests/data/tile_schedule_masks.json docs/results/data/tile_schedules_tried_h200.csv
//   docs/results/data/tile_schedules_h200.csv
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "schedule/tile_schedule_fit.hpp"

namespace {

using namespace tangram;

void print_loss(const std::string& what, std::vector<double> slower) {
  std::sort(slower.begin(), slower.end());
  const double mean = std::accumulate(slower.begin(), slower.end(), 0.0) / static_cast<double>(slower.size());
  fmt::print("{}: {} masks, mean {:.4f} of the fastest schedule's time, 90th percentile {:.3f}, worst {:.3f}\n", what,
             slower.size(), mean, slower[slower.size() * 9 / 10], slower.back());
}

/// Loss over all kinds of masks, with factors fitted anew.
double loss_with(const char* cases, const char* table, const schedule::WorkTileCosts& costs) {
  const auto all = test::read_measured_masks(cases, table, "backward", costs);
  double sum = 0;
  for (int kind = 0; kind < schedule::kNumScheduleClasses; ++kind) {
    const auto masks = test::of_kind(all, static_cast<schedule::ScheduleClass>(kind), false);
    const test::SlownessFit fit(masks);
    sum += fit.loss(fit.run()) * static_cast<double>(masks.size());
  }
  return sum / static_cast<double>(all.size());
}

void fit_costs(const char* cases, const char* table) {
  for (const double work_tile : {0.0, 1.0, 2.0, 3.0, 4.0}) {
    for (const double join : {0.5, 1.5, 2.5}) {
      fmt::print("an item costs {} steps, a join {}: loss {:.4f}\n", work_tile, join,
                 loss_with(cases, table, {.work_tile = work_tile, .join = join}));
    }
  }
}

/// Each fifth of the masks by factors that were fitted to the others: what new masks lose.
std::vector<double> slower_left_out(const std::vector<test::MeasuredMask>& masks) {
  constexpr size_t kSplitKv = 5;
  std::vector<double> slower;
  for (size_t part = 0; part < kSplitKv; ++part) {
    std::vector<test::MeasuredMask> kept, left_out;
    for (size_t i = 0; i < masks.size(); ++i) (i % kSplitKv == part ? left_out : kept).push_back(masks[i]);
    const std::vector<double> of_part = test::slower_than_fastest(left_out, test::SlownessFit(kept).run());
    slower.insert(slower.end(), of_part.begin(), of_part.end());
  }
  return slower;
}

void fit(const char* cases, const char* table, bool deterministic) {
  const std::string figure = deterministic ? "backward_deterministic" : "backward";
  const std::vector<test::MeasuredMask> all = test::read_measured_masks(cases, table, figure);
  std::vector<std::vector<double>> fitted;
  for (int kind = 0; kind < schedule::kNumScheduleClasses; ++kind) {
    const auto masks = test::of_kind(all, static_cast<schedule::ScheduleClass>(kind), deterministic);
    fitted.push_back(test::SlownessFit(masks).run());
    print_loss(fmt::format("{}, kind {}", figure, kind), test::slower_than_fastest(masks, fitted.back()));
    print_loss("  left out of the fit", slower_left_out(masks));
  }
  for (size_t form = 0; form < schedule::kScheduleCandidates.size(); ++form) {
    const schedule::ScheduleCandidate& f = schedule::kScheduleCandidates[form];
    fmt::print("  pieces {} together {} joint {}{}{} share {} of the rest {}: {{{}, {}, {}}}\n", f.head_splits,
               f.heads_in_l2, f.last_wave_heads, f.by_document ? " grouped" : "", f.cached ? " cached" : "",
               f.most_share, f.share_of_rest, fitted[0][form], fitted[1][form], fitted[2][form]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: fit_tile_schedules MASKS.json DEFAULT.csv DETERMINISTIC.csv\n");
    return 2;
  }
  try {
    for (const bool deterministic : {false, true}) fit(argv[1], argv[deterministic ? 3 : 2], deterministic);
    fit_costs(argv[1], argv[2]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "fit_tile_schedules: {}\n", error.what());
    return 1;
  }
  return 0;
}
