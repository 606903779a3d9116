// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/assign_pack.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/async_task.hpp"
#include "plan/dispatch.hpp"
#include "plan/pack.hpp"
#include "plan/pack_search.hpp"

namespace tangram {

namespace {

// Beyond these the search of all masks is as good in its time (docs/devlog/2026-11-23-new-masks.md).
constexpr int kMostRanks = 8;
constexpr size_t kMostDocuments = 256;
constexpr int64_t kMostRows = 512 << 10;
constexpr int64_t kMostChunks = 8 << 10;  // packing looks at each

// Searches end in valleys, so that several short ones are worth more than a long one: five from each of the packings of
// dispatch_tangram.cpp. Searches of many documents take long, and the good ones show early. After the first
// round and the second about half of them are given up (docs/devlog/2026-11-29-planner-time.md). Few documents have few
// places, of which a search that is given up may know the best.
constexpr int kPartsOfShard[] = {8, 32, 128};
struct PackRound {
  size_t num_searches;
  int last_phase;
};
constexpr PackRound kPackRounds[] = {{15, 1}, {8, 3}, {4, PackSearch::kNumPhases}};
constexpr PackRound kOneRound[] = {{15, PackSearch::kNumPhases}};
constexpr size_t kFewDocuments = 48;
// A whole search makes so many, each some 150 to 300 ns. Where documents are many, most of them lie whole anywhere.
int num_proposals(size_t num_documents, int cp_size) {
  const double of_documents = num_documents <= kFewDocuments ? 40 + 2 * static_cast<double>(num_documents)
                                                             : 80 + 10 * std::sqrt(static_cast<double>(num_documents));
  return (12 + cp_size) * static_cast<int>(of_documents);
}

// Does `work(n)` for each n in [first, last), on threads. Waking a thread takes a while: threads that are awake help to
// wake the others.
template <class Work>
void on_threads(size_t first, size_t last, const Work& work) {
  if (last - first == 1) return work(first);
  const size_t middle = (first + last + 1) / 2;
  AsyncTask others([&work, middle, last] { on_threads(middle, last, work); });
  on_threads(first, middle, work);
  others.finish();
}

struct PricedSearch {
  explicit PricedSearch(const CausalPack& pack) : search(pack) {}

  PackSearch search;
  double price = 0;
};

// The cheapest assignment that is found; none where no search balances.
std::vector<RankRun> best_assignment(const CausalPack& pack_of, const PackProblem& problem, int64_t chunk_size) {
  constexpr double kNever = std::numeric_limits<double>::max();
  std::array<std::vector<int>, std::size(kPartsOfShard)> packings;
  on_threads(0, packings.size(),
             [&](size_t n) { packings[n] = pack(problem, {std::max(1, problem.per_rank() / kPartsOfShard[n]), 0}); });
  const bool few = pack_of.lengths.size() <= kFewDocuments;
  const std::span<const PackRound> rounds = few ? std::span<const PackRound>(kOneRound) : kPackRounds;
  std::vector<std::unique_ptr<PricedSearch>> searches(rounds[0].num_searches);
  for (const PackRound& round : rounds) {
    searches.resize(round.num_searches);
    on_threads(0, searches.size(), [&](size_t n) {
      std::unique_ptr<PricedSearch>& its = searches[n];
      if (!its) {
        its = std::make_unique<PricedSearch>(pack_of);
        its->search.begin(packings[n % packings.size()], chunk_size, n + 1,
                          num_proposals(pack_of.lengths.size(), pack_of.cp_size));
      }
      its->search.run_phases(round.last_phase);
      const bool is_last = round.last_phase == PackSearch::kNumPhases;
      its->price = !is_last ? its->search.total() : its->search.finish() ? its->search.price() : kNever;
    });
    std::stable_sort(searches.begin(), searches.end(),
                     [](const auto& a, const auto& b) { return a->price < b->price; });
  }
  if (searches.front()->price == kNever) return {};
  return searches.front()->search.runs();
}

}  // namespace

std::optional<std::vector<RankRun>> assign_pack(std::span<const AttnSlice> slices, int64_t num_rows, int cp_size,
                                                double tolerance, const CutCost& cuts) {
  const int64_t chunk_size = finest_chunk_size(num_rows / cp_size);
  if (cp_size > kMostRanks || slices.size() > kMostDocuments || num_rows >= kMostRows ||
      num_rows / chunk_size > kMostChunks || !std::has_single_bit(static_cast<uint64_t>(cuts.tile_rows))) {
    return std::nullopt;
  }
  const CausalPack pack_of(slices, num_rows, cp_size, tolerance, cuts);
  const PackProblem problem = make_pack_problem(slices, chunk_size, num_rows / chunk_size, cp_size);
  std::vector<RankRun> map = best_assignment(pack_of, problem, chunk_size);
  if (map.empty()) return std::nullopt;
  return map;
}

}  // namespace tangram
