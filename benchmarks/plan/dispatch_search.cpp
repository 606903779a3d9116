// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How far the planner's dispatch is from the best that a long search finds: the planner's own exchange search, annealed
// for as long as asked. One CSV line for each case of FILE that matches FILTER and each cp size.
//
//   dispatch_search FILE FILTER CP WORK HEAT SEED
//   dispatch_search tests/data/dist_masks.json varlen_causal:131072 8 1e11 0.01 1
//
// CP 0 means 2, 4 and 8. WORK in chunks looked at (about a nanosecond each), HEAT in shards: 0.01 takes losses of a
// percent of a shard's rows at the start.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "plan/refine.hpp"
#include "reference/mask_cases.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

constexpr int64_t kMaxChunks = 1 << 20;
constexpr int64_t kShortestShard = 8192;

void search(const reference::MaskCase& c, int cp_size, const RefineOptions& base, double heat_shards) {
  const Mask mask(c.seqlen, c.seqlen, c.slices);
  const int64_t shard = c.seqlen / cp_size;
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  const Plan plan = make_plan(mask, config);
  const int64_t chunk_size = std::max<int64_t>(1, c.seqlen / kMaxChunks);
  std::vector<RankRun> map;
  for (int64_t row = 0; row < c.seqlen; row += plan.q_dispatch.chunk_size) {
    const int rank = plan.q_dispatch.rank_of_chunk[static_cast<size_t>(row / plan.q_dispatch.chunk_size)];
    const int end = static_cast<int>((row + plan.q_dispatch.chunk_size) / chunk_size);
    map.push_back({static_cast<int>(row / chunk_size), end, rank});
  }
  RefineOptions options = base;
  options.tolerance = shard >= 32768 ? 0.005 : 0.01;
  options.heat_rows = heat_shards * static_cast<double>(shard);
  Refiner refiner(mask.slices(), true, chunk_size, c.seqlen / chunk_size, cp_size);
  const Refiner::Score found = refiner.run(map, options);
  fmt::print("{},{},{},{:.4f},{},{:.4f},{:g},{:g},{}\n", c.name, cp_size, plan.rows_moved(), plan.balance(),
             found.remote_rows, 1 + options.tolerance + found.overload, static_cast<double>(options.max_work),
             heat_shards, options.seed);
  std::fflush(stdout);
}

}  // namespace
}  // namespace tangram

int main(int argc, char** argv) {
  if (argc != 7) {
    fmt::print(stderr, "usage: {} FILE FILTER CP WORK HEAT SEED\n", argv[0]);
    return 2;
  }
  const std::string filter = argv[2];
  const int only = std::atoi(argv[3]);
  const tangram::RefineOptions options{.max_work = static_cast<int64_t>(std::atof(argv[4])),
                                       .seed = std::strtoull(argv[6], nullptr, 10)};
  fmt::print("case,cp_size,rows_planned,balance_planned,rows_found,balance_limit,work,heat,seed\n");
  for (const auto& c : tangram::reference::load_mask_cases_from(argv[1])) {
    if (c.name.find(filter) == std::string::npos) continue;
    for (const int cp_size : {2, 4, 8}) {
      if (only != 0 && cp_size != only) continue;
      if (c.seqlen / cp_size >= tangram::kShortestShard) tangram::search(c, cp_size, options, std::atof(argv[5]));
    }
  }
  return 0;
}
