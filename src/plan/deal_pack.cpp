// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/deal_pack.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>

#include "core/ahead.hpp"
#include "plan/dispatch.hpp"
#include "plan/pack.hpp"
#include "plan/pack_search.hpp"

namespace tangram {

namespace {

// Beyond these the search of all masks is as good in its time (docs/experiments/2026-11-23-new-masks.md).
constexpr int kMostRanks = 8;
constexpr size_t kMostDocuments = 256;
constexpr int64_t kMostRows = 512 << 10;
constexpr int64_t kMostChunks = 8 << 10;  // packing looks at each

// Searches end in valleys, so that several short ones are worth more than a long one: two from each of the packings of
// dispatch_tangram.cpp.
constexpr int kPartsOfShard[] = {8, 32, 128};
constexpr size_t kNumSearches = 6;
// Each some 200 ns.
int num_proposals(size_t num_documents) { return 2500 + 40 * static_cast<int>(num_documents); }

struct Found {
  double price = std::numeric_limits<double>::max();
  std::vector<RankRun> map;
};

Found search(const CausalPack& pack, const PackProblem& problem, int64_t chunk_size, size_t number) {
  const int part = kPartsOfShard[number % std::size(kPartsOfShard)];
  const std::vector<int> ranks = tangram::pack(problem, {std::max(1, problem.per_rank() / part), 0});
  PackSearch search(pack);
  if (!search.run(ranks, chunk_size, number + 1, num_proposals(pack.lengths.size()))) return {};
  return {search.price(), search.runs()};
}

}  // namespace

std::optional<std::vector<RankRun>> deal_pack(std::span<const AttnSlice> slices, int64_t num_rows, int cp_size,
                                              double tolerance, const CutCost& cuts) {
  const int64_t chunk_size = finest_chunk_size(num_rows / cp_size);
  if (cp_size > kMostRanks || slices.size() > kMostDocuments || num_rows >= kMostRows ||
      num_rows / chunk_size > kMostChunks || !std::has_single_bit(static_cast<uint64_t>(cuts.tile_rows))) {
    return std::nullopt;
  }
  const CausalPack pack(slices, num_rows, cp_size, tolerance, cuts);
  const PackProblem problem = make_pack_problem(slices, chunk_size, num_rows / chunk_size, cp_size);
  std::vector<Found> found(kNumSearches);
  std::vector<std::unique_ptr<Ahead>> others;
  for (size_t i = 1; i < kNumSearches; ++i) {
    others.push_back(std::make_unique<Ahead>([&, i] { found[i] = search(pack, problem, chunk_size, i); }));
  }
  found[0] = search(pack, problem, chunk_size, 0);
  for (const std::unique_ptr<Ahead>& other : others) other->finish();
  const auto best = std::min_element(found.begin(), found.end(),
                                     [](const Found& a, const Found& b) { return a.price < b.price; });
  if (best->map.empty()) return std::nullopt;
  return std::move(best->map);
}

}  // namespace tangram
