// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How far the planner's dispatch is from the best that a long search finds: the planner's own search, annealed for as
// long as asked, where rows alone count and cuts cost nothing. One CSV line for each case of FILE that matches FILTER
// and each cp size.
//
//   dispatch_search FILE FILTER CP WORK HEAT SEED
//   dispatch_search tests/data/dist_masks.json varlen_causal:131072 8 1e11 0.01 1
//   dispatch_search FILE CASE CP SECONDS SEED FOLDER
//
// CP 0 means 2, 4 and 8. WORK in units of about a nanosecond, HEAT in shards: 0.01 takes losses of a percent of a
// shard's rows at the start. The second form, of one case or of all (""), runs searches of different length, heat and
// start one after another, most from the best so far. FOLDER keeps that with the seconds spent: it is written after
// every search and read at the start, so that calls add up; 0 seconds print what it holds.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plan/refine.hpp"
#include "reference/mask_cases.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

constexpr int64_t kMaxChunks = 1 << 20;
constexpr int64_t kShortestShard = 8192;

double tolerance_of(int64_t shard) { return shard >= 32768 ? 0.005 : 0.01; }

Plan plan_of(const Mask& mask, int cp_size) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  config.cost.tile_rows = 1;  // rows alone count
  return make_plan(mask, config);
}

std::vector<RankRun> map_of(const Dispatch& dispatch, int64_t chunk_size) {
  std::vector<RankRun> map;
  for (size_t c = 0; c < dispatch.rank_of_chunk.size(); ++c) {
    const int64_t row = static_cast<int64_t>(c) * dispatch.chunk_size;
    const int end = static_cast<int>((row + dispatch.chunk_size) / chunk_size);
    const int rank = dispatch.rank_of_chunk[c];
    if (!map.empty() && map.back().rank == rank) {
      map.back().end = end;
    } else {
      map.push_back({static_cast<int>(row / chunk_size), end, rank});
    }
  }
  return map;
}

void search(const reference::MaskCase& c, int cp_size, const RefineOptions& base, double heat_shards) {
  const Mask mask(c.seqlen, c.seqlen, c.slices);
  const int64_t shard = c.seqlen / cp_size;
  const Plan plan = plan_of(mask, cp_size);
  const int64_t chunk_size = std::max<int64_t>(1, c.seqlen / kMaxChunks);
  std::vector<RankRun> map = map_of(plan.q_dispatch, chunk_size);
  RefineOptions options = base;
  options.tolerance = tolerance_of(shard);
  options.heat_rows = heat_shards * static_cast<double>(shard);
  Refiner refiner(mask.slices(), true, chunk_size, c.seqlen / chunk_size, cp_size);
  const Refiner::Score found = refiner.run(map, options);
  fmt::print("{},{},{},{:.4f},{},{:.4f},{:g},{:g},{}\n", c.name, cp_size, plan.rows_moved(), plan.balance(),
             found.remote_rows, 1 + options.tolerance + found.overload, static_cast<double>(options.max_work),
             heat_shards, options.seed);
  std::fflush(stdout);
}

// What a long search has come to.
struct Found {
  std::vector<RankRun> map;
  int64_t rows = -1;  // none yet
  double seconds = 0;
  int64_t searches = 0;
  int64_t found_by = 0;  // number of the search
};

Found read_found(const std::filesystem::path& path) {
  Found found;
  std::ifstream stream(path);
  if (!stream) return found;
  stream >> found.rows >> found.seconds >> found.searches >> found.found_by;
  for (RankRun run; stream >> run.begin >> run.end >> run.rank;) found.map.push_back(run);
  return found;
}

void write_found(const std::filesystem::path& path, const Found& found) {
  const std::filesystem::path part = path.string() + ".part";
  {
    std::ofstream stream(part);
    stream << found.rows << ' ' << found.seconds << ' ' << found.searches << ' ' << found.found_by << '\n';
    for (const RankRun& run : found.map) stream << run.begin << ' ' << run.end << ' ' << run.rank << '\n';
  }
  std::filesystem::rename(part, path);
}

// Searches until `seconds` have gone by in this call.
void search_long(const reference::MaskCase& c, int cp_size, double seconds, uint64_t seed,
                 const std::filesystem::path& folder) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const Mask mask(c.seqlen, c.seqlen, c.slices);
  const int64_t shard = c.seqlen / cp_size;
  const int64_t chunk_size = std::max<int64_t>(1, c.seqlen / kMaxChunks);
  const Plan plan = plan_of(mask, cp_size);
  const std::vector<RankRun> planned = map_of(plan.q_dispatch, chunk_size);
  std::vector<RankRun> sequential;
  for (int rank = 0; rank < cp_size; ++rank) {
    const int rows = static_cast<int>(shard / chunk_size);
    sequential.push_back({rank * rows, (rank + 1) * rows, rank});
  }
  const std::filesystem::path path = folder / fmt::format("{}.{}.txt", c.name, cp_size);
  Found found = read_found(path);
  const double seconds_before = found.seconds;
  Refiner refiner(mask.slices(), true, chunk_size, c.seqlen / chunk_size, cp_size);
  if (found.rows < 0 || plan.rows_moved() < found.rows) {
    found.rows = plan.rows_moved();
    found.map = planned;
    found.found_by = 0;
  }
  constexpr double kHeats[] = {0, 0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2};
  constexpr double kWorks[] = {1e7, 1e8, 1e8, 1e9, 1e9, 4e9, 1e10, 3e10};
  for (; seconds > 0 && elapsed() < seconds; write_found(path, found)) {
    const uint64_t number = static_cast<uint64_t>(++found.searches);
    const uint64_t dice = (seed * 1'000'003 + number) * 0x9e3779b97f4a7c15 >> 16;
    RefineOptions options{.tolerance = tolerance_of(shard), .seed = seed * 1'000'003 + number};
    options.max_work = static_cast<int64_t>(kWorks[dice % 8]);
    options.heat_rows = kHeats[(dice >> 8) % 8] * static_cast<double>(shard);
    const uint64_t start = (dice >> 16) % 8;
    std::vector<RankRun> map = start == 0 ? sequential : start == 1 ? planned : found.map;
    const Refiner::Score score = refiner.run(map, options);
    found.seconds = seconds_before + elapsed();
    if (score.overload > 0 || score.remote_rows >= found.rows) continue;
    found.rows = score.remote_rows;
    found.map = map;
    found.found_by = static_cast<int64_t>(number);
  }
  fmt::print("{},{},{},{:.4f},{},{:.4f},{:.0f},{},{},{}\n", c.name, cp_size, plan.rows_moved(), plan.balance(),
             found.rows, 1 + tolerance_of(shard), found.seconds, found.searches, found.found_by, seed);
  std::fflush(stdout);
}

}  // namespace
}  // namespace tangram

int main(int argc, char** argv) {
  if (argc != 7) {
    fmt::print(stderr, "usage: {} FILE FILTER CP WORK HEAT SEED | FILE CASE CP SECONDS SEED FOLDER\n", argv[0]);
    return 2;
  }
  const std::string filter = argv[2];
  const int only = std::atoi(argv[3]);
  const bool is_long = std::filesystem::is_directory(argv[6]);
  const tangram::RefineOptions options{.max_work = static_cast<int64_t>(std::atof(argv[4])),
                                       .seed = std::strtoull(argv[6], nullptr, 10)};
  fmt::print("case,cp_size,rows_planned,balance_planned,rows_found,balance_limit,{},seed\n",
             is_long ? "seconds,searches,found_by" : "work,heat");
  for (const auto& c : tangram::reference::load_mask_cases_from(argv[1])) {
    if (is_long && !filter.empty() ? c.name != filter : c.name.find(filter) == std::string::npos) continue;
    for (const int cp_size : {2, 4, 8}) {
      if (only != 0 && cp_size != only) continue;
      if (c.seqlen / cp_size < tangram::kShortestShard) continue;
      if (is_long) {
        tangram::search_long(c, cp_size, std::atof(argv[4]), std::strtoull(argv[5], nullptr, 10), argv[6]);
      } else {
        tangram::search(c, cp_size, options, std::atof(argv[5]));
      }
    }
  }
  return 0;
}
