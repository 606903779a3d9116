// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Rows between nodes of plans that know nodes beside those of flat plans, for packed documents, one CSV line a pack:
//
//   nodes_bench HISTOGRAM MASK NODES RANKS_PER_NODE ROWS FIRST_SEED LAST_SEED
//   nodes_bench src/cli/data/doc_lengths.json documents 8 8 8192 10 19
//
// MASK: documents, causal, window or full. HISTOGRAM and seeds give the documents that `tangram plan --total-seqlen N
// --seed S` draws. Rows are those of the busiest network card: `flat` where each rank fetches for itself, `relays`
// where a row crosses to a node once, on the rail of its owner, both of the flat plan; `nodes` of the plan that knows
// nodes, before its rails are evened, `even` after that. Times are processor milliseconds of make_plan.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "plan/nodes/node_rows.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

double processor_ms() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Draws lengths like src/cli/doc_lengths.cpp.
std::vector<int64_t> draw_lengths(const nlohmann::json& intervals, int64_t total, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(static_cast<double>(random() >> 11) * 0x1p-53 * static_cast<double>(bound));
  };
  int64_t total_count = 0;
  for (const auto& interval : intervals) total_count += interval["count"].get<int64_t>();
  std::vector<int64_t> lengths;
  for (int64_t left = total; left > 0;) {
    int64_t at = below(total_count);
    auto interval = intervals.begin();
    while ((at -= (*interval)["count"].get<int64_t>()) >= 0) ++interval;
    const auto lo = (*interval)["lo"].get<int64_t>();
    const int64_t length = lo + below((*interval)["hi"].get<int64_t>() - lo + 1);
    if (length == 0) continue;
    lengths.push_back(std::min({length, std::max<int64_t>(1, total / 4), left}));
    left -= lengths.back();
  }
  return lengths;
}

Mask mask_of(const std::string& name, const nlohmann::json& intervals, int64_t total, uint64_t seed) {
  if (name == "causal") return causal_mask(total, total);
  if (name == "full") return full_mask(total, total);
  if (name == "window") return sliding_window_mask(total, {4095, 0});
  std::vector<int64_t> borders{0};
  for (const int64_t length : draw_lengths(intervals, total, seed)) borders.push_back(borders.back() + length);
  return varlen_mask(borders, true);
}

struct Planned {
  Plan plan;
  double ms = 0;
};
Planned planned(const Mask& mask, const DistAttnConfig& config) {
  Planned best;
  for (int n = 0; n < 5; ++n) {
    const double begin = processor_ms();
    best.plan = make_plan(mask, config);
    const double ms = processor_ms() - begin;
    best.ms = n == 0 ? ms : std::min(best.ms, ms);
  }
  return best;
}

int64_t busiest_direct(const Plan& plan, const NodeShape& nodes) {
  NodeTraffic traffic{std::vector<int64_t>(plan.ranks().size()), std::vector<int64_t>(plan.ranks().size()), {}, {}};
  for (size_t r = 0; r < plan.ranks().size(); ++r) {
    for (const KvSegment& segment : plan.ranks()[r].segments) {
      if (nodes.same_node(segment.owner, static_cast<int>(r))) continue;
      traffic.received[r] += segment.global.size();
      traffic.sent[static_cast<size_t>(segment.owner)] += segment.global.size();
    }
  }
  return traffic.busiest();
}

int64_t most_remote(const Plan& plan) {
  int64_t most = 0;
  for (const RankPlan& rank : plan.ranks()) most = std::max(most, rank.remote_kv_rows);
  return most;
}

NodeRows rows_of(const Plan& plan, const NodeShape& nodes) {
  const std::vector<OwnedRun> runs = owned_runs(plan.q_dispatch);
  return node_rows(plan.mask, runs, runs, nodes);
}

int main_of(int argc, char** argv) {
  if (argc != 8) return 2;
  const nlohmann::json histogram = nlohmann::json::parse(std::ifstream(argv[1]));
  const NodeShape nodes{std::atoi(argv[3]) * std::atoi(argv[4]), std::atoi(argv[4])};
  const int64_t rows = std::atoll(argv[5]);
  fmt::print(
      "mask,nodes,rows_a_rank,seed,flat,relays,own_rails,even,even/relays,total_flat,total,hops,most_flat,most,"
      "balance_flat,balance,ms_flat,ms\n");
  for (uint64_t seed = std::strtoull(argv[6], nullptr, 10); seed <= std::strtoull(argv[7], nullptr, 10); ++seed) {
    const Mask mask = mask_of(argv[2], histogram["intervals"], rows * nodes.cp_size, seed);
    DistAttnConfig config;
    config.cp_size = nodes.cp_size;
    config.heads = {64, 8, 128, 128, DType::kBFloat16};
    const Planned flat = planned(mask, config);
    config.cost.ranks_per_node = nodes.ranks_per_node;
    const Planned known = planned(mask, config);
    const NodeTraffic relays = traffic_of(rows_of(flat.plan, nodes), nodes);
    NodeRows crossing = rows_of(known.plan, nodes);
    const NodeTraffic own_rails = traffic_of(crossing, nodes);
    even_rails(crossing, nodes);
    const NodeTraffic even = traffic_of(crossing, nodes);
    fmt::print("{},{},{},{},{},{},{},{},{:.3f},{},{},{},{},{},{:.4f},{:.4f},{:.1f},{:.1f}\n", argv[2],
               nodes.num_nodes(), rows, seed, busiest_direct(flat.plan, nodes), relays.busiest(), own_rails.busiest(),
               even.busiest(),
               static_cast<double>(even.busiest()) / static_cast<double>(std::max<int64_t>(1, relays.busiest())),
               relays.total(), even.total(), even.total_hops(), most_remote(flat.plan), most_remote(known.plan),
               flat.plan.balance(), known.plan.balance(), flat.ms, known.ms);
  }
  return 0;
}

}  // namespace
}  // namespace tangram

int main(int argc, char** argv) { return tangram::main_of(argc, argv); }
