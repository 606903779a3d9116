// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Our dispatch: packs the blocks of the mask in several ways, improves the most promising by exchanges, and keeps the
// best. See pack.hpp and refine.hpp for the two halves.
#include <algorithm>

#include "plan/dispatch.hpp"
#include "plan/pack.hpp"
#include "plan/refine.hpp"

namespace tangram {

namespace {

constexpr int kNumStarts = 2;       // packings that are improved
constexpr int64_t kWork = 700'000;  // of improving one of them, see RefineOptions; under a millisecond
constexpr double kCheapExcess = 2;  // rows of the sequence that a whole mean area of overload is worth, when
constexpr double kExcess = 100;     // choosing what to improve, and what to take

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
  return rows_per_rank >= kLongShard ? 0.004 : 0.008;
}

struct Candidate {
  std::vector<int> ranks;
  Refiner::Score score;
};

void sort_by_price(std::vector<Candidate>& candidates, double price_of_overload) {
  const auto price = [&](const Candidate& candidate) {
    return static_cast<double>(candidate.score.remote_rows) + price_of_overload * candidate.score.overload;
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Candidate& a, const Candidate& b) { return price(a) < price(b); });
}

}  // namespace

namespace {

// The best of all packings with chunks of one size. `overload`: what is left above the tolerance.
Dispatch dispatch_chunks(const Mask& mask, int cp_size, int64_t chunk_size, double& overload) {
  const int64_t num_chunks = mask.seqlen_q() / chunk_size;
  const PackProblem problem = make_pack_problem(mask.slices(), chunk_size, num_chunks, cp_size);
  const int per_rank = problem.per_rank();
  const double tolerance = balance_tolerance(per_rank * chunk_size);
  // Cross attention has its keys dealt out later; what a query row needs is remote to it or not whatever we do here.
  Refiner refiner(mask.is_self_attention() ? mask.slices() : std::span<const AttnSlice>(), chunk_size, problem.areas,
                  cp_size);
  std::vector<Candidate> candidates;
  const auto add = [&](std::vector<int> ranks) {
    const auto same = [&](const Candidate& other) { return other.ranks == ranks; };
    if (std::any_of(candidates.begin(), candidates.end(), same)) return;
    const Refiner::Score score = refiner.score(ranks, tolerance);
    candidates.push_back({std::move(ranks), score});
  };
  add(dispatch_sequential(num_chunks, cp_size));
  for (const int min_whole : {per_rank / 4, per_rank / 16, 0, per_rank + 1}) {
    for (const double density_step : {0.0, 4.0, 1.5, 1.0}) add(pack(problem, {min_whole, density_step}));
  }
  const double all_rows = static_cast<double>(mask.seqlen_q());
  sort_by_price(candidates, kCheapExcess * all_rows);
  // A mask of one block is cut as it must be; exchanges could only mend its balance.
  const bool can_improve = refiner.num_components() > 1 || candidates[0].score.overload > 0;
  if (can_improve && cp_size > 1) {
    candidates.resize(std::min<size_t>(candidates.size(), kNumStarts));
    for (Candidate& candidate : candidates) {
      candidate.ranks = refiner.run(std::move(candidate.ranks), {.max_work = kWork, .tolerance = tolerance});
      candidate.score = refiner.score(candidate.ranks, tolerance);
    }
  }
  sort_by_price(candidates, kExcess * all_rows);
  overload = candidates[0].score.overload;
  renumber(candidates[0].ranks, cp_size);
  return {cp_size, chunk_size, std::move(candidates[0].ranks)};
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
