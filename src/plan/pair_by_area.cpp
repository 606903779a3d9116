// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/pair_by_area.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace tangram {

namespace {

/// Chunks in row order, with the prefix sums of their areas.
struct Sequence {
  std::vector<int> chunks;
  std::vector<int64_t> prefix = {0};
  int next = 0;  // the first that no rank has taken

  void add(int chunk, int64_t area) {
    chunks.push_back(chunk);
    prefix.push_back(prefix.back() + area);
  }
  int left() const { return static_cast<int>(chunks.size()) - next; }
  int64_t area_of_next(int count) const {
    return prefix[static_cast<size_t>(next + count)] - prefix[static_cast<size_t>(next)];
  }
};

}  // namespace

std::vector<int> pair_by_area(std::span<const int64_t> areas, int cp_size) {
  const auto num_chunks = static_cast<int>(areas.size());
  const int per_rank = num_chunks / cp_size;
  const int64_t total = std::accumulate(areas.begin(), areas.end(), int64_t{0});
  const double mean = static_cast<double>(total) / num_chunks;
  Sequence heavy, light;
  for (int c = 0; c < num_chunks; ++c) {
    const int64_t area = areas[static_cast<size_t>(c)];
    (static_cast<double>(area) > mean ? heavy : light).add(c, area);
  }
  std::vector<int> rank_of_chunk(static_cast<size_t>(num_chunks));
  const auto take = [&](Sequence& from, int count, int rank) {
    for (; count > 0; --count) rank_of_chunk[static_cast<size_t>(from.chunks[static_cast<size_t>(from.next++)])] = rank;
  };
  int64_t taken = 0;  // area
  for (int rank = 0; rank < cp_size; ++rank) {
    const double target = static_cast<double>(total) * (rank + 1) / cp_size - static_cast<double>(taken);
    const auto area_with = [&](int num_heavy) {
      return heavy.area_of_next(num_heavy) + light.area_of_next(per_rank - num_heavy);
    };
    const auto off = [&](int num_heavy) { return std::abs(static_cast<double>(area_with(num_heavy)) - target); };
    // The area grows with the number of heavy chunks: the first number that reaches the target, or the one before it.
    int low = std::max(0, per_rank - light.left()), high = std::min(per_rank, heavy.left());
    const int least = low;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (static_cast<double>(area_with(middle)) < target) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low > least && off(low - 1) < off(low)) --low;
    taken += area_with(low);
    take(heavy, low, rank);
    take(light, per_rank - low, rank);
  }
  return rank_of_chunk;
}

}  // namespace tangram
