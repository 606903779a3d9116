// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans in which queries may move, beside a fixed sort: time of planning for rows that are already sharded, bytes
// that all ranks receive in a step, balance, predicted time. For the CSV of docs/results:
//   bench_plan_movement --benchmark_format=csv > docs/results/data/movement_cpu.csv
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "fixed_sort.hpp"
#include "plan/row_bytes.hpp"
#include "reference/mask_cases.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

struct MovementCase {
  reference::MaskCase mask;
  int cp_size = 8;
  int heads_kv = 8;
  bool in_order = false;  // rows in sequence order instead of sharded for the mask
  Movement movement = Movement::kAuto;
};

// Everything at once, as the executor of K/V alone counts rows in its stages.
double received_gb(const Plan& plan) {
  if (plan.movement() != nullptr) {
    const GridTraffic traffic = movement_traffic(plan, GridCall{});
    return static_cast<double>(traffic.forward_bytes + traffic.backward_bytes) / 1e9;
  }
  double bytes = 0;
  for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
    const RowBytes row = row_bytes(plan.config, pass);
    bytes += static_cast<double>(plan.rows_moved() * (row.kv_in + row.kv_back));
  }
  return bytes / 1e9;
}

// The CSV reporter wants the same counters of every run.
struct Figures {
  double slices = 0;
  double gb = 0;
  double balance = 0;
  double predicted_ms = 0;
};

void set_figures(benchmark::State& state, const Figures& figures) {
  state.counters["slices"] = figures.slices;
  state.counters["gb"] = figures.gb;
  state.counters["balance"] = figures.balance;
  state.counters["predicted_ms"] = figures.predicted_ms;
}

void plan_case(benchmark::State& state, const MovementCase& c) {
  DistAttnConfig config;
  config.cp_size = c.cp_size;
  config.heads = {64, c.heads_kv, 128, 128, DType::kBFloat16};
  if (c.in_order) config.dispatch = {DispatchAlgorithm::kSequential, c.mask.seqlen / c.cp_size, 0};
  const Mask mask(c.mask.seqlen, c.mask.seqlen, c.mask.slices);
  Plan plan = make_plan(mask, config);
  config.movement.algorithm = c.movement;
  const Dispatch q_dispatch = plan.q_dispatch, k_dispatch = plan.k_dispatch;
  for (auto _ : state) plan = make_plan(mask, config, q_dispatch, k_dispatch);
  set_figures(state, {static_cast<double>(mask.slices().size()), received_gb(plan), plan.balance(),
                      (plan.predicted.forward_s + plan.predicted.backward_s) * 1e3});
}

// A mask from drawn blocks of 128 and a plan over rows in sequence order: what a step of dynamic sparse attention
// plans.
void plan_blocks(benchmark::State& state, int64_t seqlen, int64_t blocks_each, int cp_size) {
  std::mt19937 rng(1);
  const int64_t num_blocks = seqlen / 128;
  std::vector<int32_t> indices;
  for (int64_t row = 0; row < num_blocks; ++row) {
    // Runs of four neighbours, as selection by score tends to give.
    std::vector<int32_t> seen;
    while (static_cast<int64_t>(seen.size()) < blocks_each) {
      const int32_t first = static_cast<int32_t>(rng() % static_cast<uint64_t>(num_blocks / 4)) * 4;
      if (std::find(seen.begin(), seen.end(), first) != seen.end()) continue;
      for (int32_t i = 0; i < 4; ++i) seen.push_back(first + i);
    }
    indices.insert(indices.end(), seen.begin(), seen.end());
  }
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.movement.algorithm = Movement::kAuto;
  const Dispatch rows = make_plan(full_mask(seqlen, seqlen),
                                  [&] {
                                    DistAttnConfig in_order = config;
                                    in_order.movement = {};
                                    in_order.dispatch.algorithm = DispatchAlgorithm::kSequential;
                                    return in_order;
                                  }())
                            .q_dispatch;
  Plan plan;
  for (auto _ : state) {
    const Mask mask = mask_from_block_indices({seqlen, seqlen, 128, 128, indices, {}});
    plan = make_plan(mask, config, rows, rows);
  }
  set_figures(state, {static_cast<double>(plan.mask.slices().size()), received_gb(plan), plan.balance(),
                      (plan.predicted.forward_s + plan.predicted.backward_s) * 1e3});
}

// CSV wants the same counters of all.
void sort_with_figures(benchmark::State& state) {
  sort_million(state);
  set_figures(state, {});
}

bool register_all() {
  benchmark::RegisterBenchmark("sort/1048576", sort_with_figures)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("blocks/131072/of:8/cp:8", plan_blocks, 131072, 8, 8)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("blocks/1048576/of:16/cp:64", plan_blocks, 1048576, 16, 64)
      ->Unit(benchmark::kMillisecond);
  for (const reference::MaskCase& mask : reference::load_mask_cases("dist_masks.json")) {
    if (mask.seqlen != 131072 && mask.seqlen != 1048576) continue;
    const int cp_size = mask.seqlen == 131072 ? 8 : 64;
    for (const int heads_kv : {8, 64}) {
      for (const bool in_order : {false, true}) {
        for (const Movement movement : {Movement::kKv, Movement::kQo, Movement::kAuto, Movement::kGreedyRandomGrid,
                                        Movement::kBinaryGreedy, Movement::kNetworkFlow}) {
          if (movement >= Movement::kGreedyRandomGrid && (cp_size > 8 || !in_order)) continue;  // minutes
          const std::string name = "movement/" + mask.name + "/cp:" + std::to_string(cp_size) +
                                   "/kv_heads:" + std::to_string(heads_kv) + (in_order ? "/in_order/" : "/assigned/") +
                                   std::string(to_string(movement));
          benchmark::RegisterBenchmark(name.c_str(), plan_case,
                                       MovementCase{mask, cp_size, heads_kv, in_order, movement})
              ->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace tangram
