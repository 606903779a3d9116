// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/assign_pack.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

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
// dispatch_tangram.cpp.
constexpr int kPartsOfShard[] = {8, 32, 128};
constexpr size_t kNumSearches = 15;
// Each some 150 to 300 ns.
int num_proposals(size_t num_documents, int cp_size) {
  return (12 + cp_size) * (40 + 2 * static_cast<int>(num_documents));
}

struct Found {
  double price = std::numeric_limits<double>::max();
  std::vector<RankRun> map;
};

class Assign {
 public:
  Assign(std::span<const AttnSlice> slices, int64_t num_rows, int cp_size, double tolerance, const CutCost& cuts,
         int64_t chunk_size)
      : pack_(slices, num_rows, cp_size, tolerance, cuts),
        problem_(make_pack_problem(slices, chunk_size, num_rows / chunk_size, cp_size)),
        chunk_size_(chunk_size) {}

  std::vector<RankRun> best() {
    search_all(0, kNumSearches);
    const auto cheaper = [](const Found& a, const Found& b) { return a.price < b.price; };
    return std::move(std::min_element(found_.begin(), found_.end(), cheaper)->map);
  }

 private:
  // Waking a thread takes a while: threads that are awake help to wake the others.
  void search_all(size_t first, size_t last) {
    if (last - first == 1) return search(first);
    const size_t middle = (first + last + 1) / 2;
    AsyncTask others([this, middle, last] { search_all(middle, last); });
    search_all(first, middle);
    others.finish();
  }

  void search(size_t number) {
    const int part = kPartsOfShard[number % std::size(kPartsOfShard)];
    const std::vector<int> ranks = pack(problem_, {std::max(1, problem_.per_rank() / part), 0});
    PackSearch search(pack_);
    if (!search.run(ranks, chunk_size_, number + 1, num_proposals(pack_.lengths.size(), pack_.cp_size))) return;
    found_[number] = {search.price(), search.runs()};
  }

  const CausalPack pack_;
  const PackProblem problem_;
  const int64_t chunk_size_;
  std::array<Found, kNumSearches> found_;
};

}  // namespace

std::optional<std::vector<RankRun>> assign_pack(std::span<const AttnSlice> slices, int64_t num_rows, int cp_size,
                                                double tolerance, const CutCost& cuts) {
  const int64_t chunk_size = finest_chunk_size(num_rows / cp_size);
  if (cp_size > kMostRanks || slices.size() > kMostDocuments || num_rows >= kMostRows ||
      num_rows / chunk_size > kMostChunks || !std::has_single_bit(static_cast<uint64_t>(cuts.tile_rows))) {
    return std::nullopt;
  }
  std::vector<RankRun> map = Assign(slices, num_rows, cp_size, tolerance, cuts, chunk_size).best();
  if (map.empty()) return std::nullopt;
  return map;
}

}  // namespace tangram
