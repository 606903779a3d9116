// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Our dispatch: packs the blocks of the mask in several ways and improves the most promising by exchanges. See pack.hpp
// and refine.hpp for the two halves.
#include <algorithm>

#include "plan/chunk_areas.hpp"
#include "plan/dispatch.hpp"
#include "plan/pack.hpp"
#include "plan/refine.hpp"

namespace tangram {

namespace {

constexpr int64_t kWork = 2'600'000;  // of improving a packing, see RefineOptions; two milliseconds
// What a whole mean area of overload is worth, in multiples of all rows, when choosing what to improve: it will be
// mended.
constexpr double kPriceOfOverload = 4;

constexpr double kMendable = 0.05;

// Numbers ranks by their first chunk, so that neighbours in the sequence tend to be neighbours in the group.
void renumber(std::vector<int>& ranks, int cp_size) {
  std::vector<int> number(static_cast<size_t>(cp_size), -1);
  int next = 0;
  for (int& rank : ranks) {
    int& mine = number[static_cast<size_t>(rank)];
    if (mine < 0) mine = next++;
    rank = mine;
  }
}

// How far above the mean a rank's area may be without a price. The longer the shards, the less a percent of area can
// hide behind rounding to tiles.
double balance_tolerance(int64_t rows_per_rank) {
  constexpr int64_t kLongShard = 32 * 1024;
  return rows_per_rank >= kLongShard ? 0.0048 : 0.0095;
}

// The best of all packings with chunks of one size. `overload`: what is left above the tolerance.
Dispatch dispatch_chunks(const Mask& mask, int cp_size, int64_t chunk_size, double& overload) {
  const int64_t num_chunks = mask.seqlen_q() / chunk_size;
  const PackProblem problem = make_pack_problem(mask.slices(), chunk_size, num_chunks, cp_size);
  const int per_rank = problem.per_rank();
  const double tolerance = balance_tolerance(per_rank * chunk_size);
  // Cross attention has its keys dealt out later; what a query row needs is remote to it or not whatever we do here.
  Refiner refiner(mask.is_self_attention() ? mask.slices() : std::span<const AttnSlice>(), chunk_size, problem.areas,
                  cp_size);
  std::vector<int> best;
  Refiner::Score best_score;
  const auto price = [&](const Refiner::Score& score) {
    return static_cast<double>(score.remote_rows) +
           kPriceOfOverload * static_cast<double>(mask.seqlen_q()) * score.overload;
  };
  const auto consider = [&](std::vector<int> ranks) {
    const Refiner::Score score = refiner.score(ranks, tolerance);
    if (!best.empty() && price(score) >= price(best_score)) return;
    best = std::move(ranks);
    best_score = score;
  };
  // By position alone what is nearly balanced can be mended; the rest would be dealt out anew by exchanges.
  std::vector<int> sequential = dispatch_sequential(num_chunks, cp_size);
  if (refiner.score(sequential, tolerance).overload <= kMendable) consider(std::move(sequential));
  for (const int min_whole : {per_rank / 8, per_rank + 1}) {
    for (const double density_step : {0.0, 1.5}) consider(pack(problem, {min_whole, density_step}));
  }
  // A mask of one block is cut as it must be; exchanges could only mend its balance.
  if (cp_size > 1 && (refiner.num_components() > 1 || best_score.overload > 0)) {
    best = refiner.run(std::move(best), {.max_work = kWork, .tolerance = tolerance});
    best_score = refiner.score(best, tolerance);
  }
  overload = best_score.overload;
  renumber(best, cp_size);
  return {cp_size, chunk_size, std::move(best)};
}

}  // namespace

Dispatch dispatch_tangram(const Mask& mask, const DistAttnConfig& config) {
  double overload = 0;
  if (config.dispatch.chunk_size > 0) {
    return dispatch_chunks(mask, config.cp_size, config.dispatch.chunk_size, overload);
  }
  // The coarsest chunks that balance; long shards need no fine ones.
  constexpr int64_t kCoarsest = 512;
  constexpr int64_t kUsual = 128;
  constexpr int64_t kFinest = 64;
  constexpr int64_t kChunksPerRank = 128;
  const int64_t rows = mask.seqlen_q() / config.cp_size;
  int64_t chunk_size = finest_chunk_size(rows);
  while (chunk_size >= kUsual && chunk_size < kCoarsest && rows % (2 * chunk_size) == 0 &&
         rows / (2 * chunk_size) >= kChunksPerRank) {
    chunk_size *= 2;
  }
  // One chunk must not weigh so much that exchanges of chunks cannot balance; this bound is a matter of experience.
  constexpr double kMaxShareOfChunk = 15;  // tolerances
  const auto too_heavy = [&] {
    const std::vector<int64_t> areas = chunk_areas(mask.slices(), chunk_size, mask.seqlen_q() / chunk_size);
    const double mean = static_cast<double>(mask.area()) / config.cp_size;
    return static_cast<double>(*std::max_element(areas.begin(), areas.end())) >
           kMaxShareOfChunk * balance_tolerance(rows) * mean;
  };
  while (chunk_size > kFinest && chunk_size % 2 == 0 && too_heavy()) chunk_size /= 2;
  Dispatch best = dispatch_chunks(mask, config.cp_size, chunk_size, overload);
  const double negligible = balance_tolerance(rows) / 4;  // finer chunks cost copies and partly filled tiles
  while (overload > negligible && chunk_size > kFinest && chunk_size % 2 == 0) {
    chunk_size /= 2;
    double finer_overload = 0;
    Dispatch finer = dispatch_chunks(mask, config.cp_size, chunk_size, finer_overload);
    if (finer_overload >= overload) continue;
    best = std::move(finer);
    overload = finer_overload;
  }
  return coarsened(best);
}

}  // namespace tangram
