// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Time from a list of slices to a finished plan: validation and canonical form, adaptive dispatch, slices, exchange
// tables and stages of both passes, and the tile list of one rank. Beside it a fixed sort, so that figures from unlike
// machines can be compared by their ratio.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "fixed_sort.hpp"
#include "reference/mask_cases.hpp"
#include "schedule/tile_list.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

DistAttnConfig config_of(int cp_size, DispatchAlgorithm algorithm) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.dispatch.algorithm = algorithm;
  return config;
}

void plan_case(benchmark::State& state, const reference::MaskCase& c, int cp_size) {
  Plan plan;
  for (auto _ : state) {
    const Mask mask(c.seqlen, c.seqlen, c.slices);
    plan = make_plan(mask, config_of(cp_size, DispatchAlgorithm::kAuto));
    const RankPlan& own = plan.ranks()[0];
    benchmark::DoNotOptimize(
        schedule::build_tile_list(own.slices, plan.q_dispatch.rows_per_rank(), own.kv_rows, TileShape{128, 128}));
  }
  state.counters["balance"] = plan.balance();
  state.counters["rows_moved"] = static_cast<double>(plan.rows_moved());
  state.counters["chunk_size"] = static_cast<double>(plan.q_dispatch.chunk_size);
}

// With the choice of a strategy; beside plan_case of the same mask.
void auto_case(benchmark::State& state, const reference::MaskCase& c, int cp_size) {
  const Mask mask(c.seqlen, c.seqlen, c.slices);
  DistAttnConfig config = config_of(cp_size, DispatchAlgorithm::kAuto);
  config.strategy.name = Strategy::kAuto;
  Plan plan;
  for (auto _ : state) plan = make_plan(mask, config);
  state.SetLabel(describe(plan.config.strategy));
  state.counters["balance"] = plan.balance();
  state.counters["rows_moved"] = static_cast<double>(plan.rows_moved());
  state.counters["chunk_size"] = static_cast<double>(plan.q_dispatch.chunk_size);
}

// 1 M tokens in `count` documents of unlike lengths.
reference::MaskCase many_documents(int64_t count) {
  reference::MaskCase c{"varlen_causal_" + std::to_string(count) + "_documents", 1 << 20, 0, {}};
  std::mt19937 rng(1);
  int64_t begin = 0;
  for (int64_t left = count; left > 0; --left) {
    const int64_t mean = (c.seqlen - begin) / left;
    const int64_t rows = left == 1 ? mean : 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(2 * mean - 1));
    c.slices.push_back(AttnSlice::causal({begin, begin + rows}, {begin, begin + rows}));
    begin += rows;
  }
  return c;
}

// 1 M tokens: 16 continuations of a common prefix.
reference::MaskCase shared_prefix() {
  constexpr int64_t kRows = 1 << 20, kPrefix = kRows / 4, kContinuations = 16;
  const std::vector<int64_t> lengths(kContinuations, (kRows - kPrefix) / kContinuations);
  const Mask mask = shared_prefix_mask(kPrefix, lengths);
  return {"shared_prefix", kRows, mask.area(), {mask.slices().begin(), mask.slices().end()}};
}

// Causal documents of log-normal lengths.
std::vector<Mask> random_packs(int64_t rows, int documents) {
  constexpr int kPacks = 40;
  std::mt19937_64 rng(1);
  std::normal_distribution<double> normal;
  std::vector<Mask> packs;
  while (packs.size() < kPacks) {
    std::vector<double> ends{0};
    for (int i = 0; i < documents; ++i) ends.push_back(ends.back() + std::exp(normal(rng)));
    std::vector<int64_t> borders{0};
    for (const double end : ends) {
      const int64_t border = std::llround(end / ends.back() * static_cast<double>(rows));
      if (border > borders.back()) borders.push_back(border);
    }
    packs.push_back(varlen_mask(borders, true));
  }
  return packs;
}

// A new pack each time; counters are means of all of them.
void packs_case(benchmark::State& state, int64_t rows, int documents, int cp_size) {
  const std::vector<Mask> packs = random_packs(rows, documents);
  const DistAttnConfig config = config_of(cp_size, DispatchAlgorithm::kAuto);
  double balance = 0, moved = 0, step_us = 0;
  for (const Mask& mask : packs) {
    const Plan plan = make_plan(mask, config);
    balance += plan.balance();
    moved += static_cast<double>(plan.rows_moved());
    step_us += 1e6 * (plan.predicted.forward_s + plan.predicted.backward_s);
  }
  size_t next = 0;
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(packs[next++ % packs.size()], config));
  const auto count = static_cast<double>(packs.size());
  state.counters["balance"] = balance / count;
  state.counters["rows_moved"] = moved / count;
  state.counters["step_us"] = step_us / count;
}

void validate_case(benchmark::State& state, const reference::MaskCase& c) {
  for (auto _ : state) benchmark::DoNotOptimize(Mask(c.seqlen, c.seqlen, c.slices));
}

bool register_all() {
  benchmark::RegisterBenchmark("sort/1048576", sort_million)->Unit(benchmark::kMillisecond);
  for (const int64_t count : {1000, 4000, 16000}) {
    const reference::MaskCase c = many_documents(count);
    benchmark::RegisterBenchmark(("plan/" + c.name + "/cp:64").c_str(), plan_case, c, 64)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("plan/shared_prefix/cp:64", plan_case, shared_prefix(), 64)
      ->Unit(benchmark::kMillisecond);
  const struct {
    int64_t rows;
    int documents, cp_size;
  } packs[] = {{32768, 16, 2}, {33024, 16, 3}, {32768, 16, 4}, {32768, 64, 4},  {131072, 48, 4},
               {65536, 5, 4},  {32768, 16, 8}, {32768, 64, 8}, {131072, 48, 8}, {131072, 8, 8}};
  for (const auto& [rows, documents, cp_size] : packs) {
    const std::string name =
        "packs/" + std::to_string(rows) + ":" + std::to_string(documents) + "/cp:" + std::to_string(cp_size);
    benchmark::RegisterBenchmark(name.c_str(), packs_case, rows, documents, cp_size)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
  for (const reference::MaskCase& c : reference::load_mask_cases("dist_masks.json")) {
    if (c.seqlen != 131072 && c.seqlen != 1048576) continue;
    if (c.seqlen == 1048576) {
      benchmark::RegisterBenchmark(("validate/" + c.name).c_str(), validate_case, c)->Unit(benchmark::kMillisecond);
    }
    for (const int cp_size : {8, 32, 64}) {
      if (c.seqlen == 131072 && cp_size > 8) continue;
      const std::string name = "plan/" + c.name + "/cp:" + std::to_string(cp_size);
      benchmark::RegisterBenchmark(name.c_str(), plan_case, c, cp_size)->Unit(benchmark::kMillisecond);
      benchmark::RegisterBenchmark(("auto/" + name.substr(5)).c_str(), auto_case, c, cp_size)
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace tangram
