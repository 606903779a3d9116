// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The classic dispatch algorithms: by position, or by area alone.
#include <algorithm>
#include <numeric>
#include <queue>

#include "plan/dispatch.hpp"

namespace tangram {

namespace {

// Chunks from heavy to light; equal ones in sequence order.
std::vector<int> by_descending_area(std::span<const int64_t> areas) {
  std::vector<int> order(areas.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return areas[static_cast<size_t>(a)] > areas[static_cast<size_t>(b)]; });
  return order;
}

// 0 1 .. R-1 R-1 .. 1 0 0 1 and so on.
int zigzag_rank(int64_t position, int cp_size) {
  const int64_t lap = position / cp_size;
  const int at = static_cast<int>(position % cp_size);
  return lap % 2 == 0 ? at : cp_size - 1 - at;
}

}  // namespace

std::vector<int> dispatch_sequential(int64_t num_chunks, int cp_size) {
  const int64_t per_rank = num_chunks / cp_size;
  std::vector<int> ranks(static_cast<size_t>(num_chunks));
  for (int64_t c = 0; c < num_chunks; ++c) ranks[static_cast<size_t>(c)] = static_cast<int>(c / per_rank);
  return ranks;
}

std::vector<int> dispatch_zigzag(int64_t num_chunks, int cp_size) {
  std::vector<int> ranks(static_cast<size_t>(num_chunks));
  for (int64_t c = 0; c < num_chunks; ++c) ranks[static_cast<size_t>(c)] = zigzag_rank(c, cp_size);
  return ranks;
}

std::vector<int> dispatch_min_heap(std::span<const int64_t> areas, int cp_size) {
  struct Load {
    int64_t area;
    int rank;
    bool operator>(const Load& other) const { return area != other.area ? area > other.area : rank > other.rank; }
  };
  std::priority_queue<Load, std::vector<Load>, std::greater<>> lightest;
  for (int rank = 0; rank < cp_size; ++rank) lightest.push({0, rank});
  const int64_t per_rank = static_cast<int64_t>(areas.size()) / cp_size;
  std::vector<int64_t> num_assigned(static_cast<size_t>(cp_size));
  std::vector<int> ranks(areas.size());
  for (const int chunk : by_descending_area(areas)) {
    Load load = lightest.top();
    lightest.pop();
    ranks[static_cast<size_t>(chunk)] = load.rank;
    load.area += areas[static_cast<size_t>(chunk)];
    // A full rank leaves the heap: every rank holds equally many rows.
    if (++num_assigned[static_cast<size_t>(load.rank)] < per_rank) lightest.push(load);
  }
  return ranks;
}

std::vector<int> dispatch_sorted_sequential(std::span<const int64_t> areas, int cp_size) {
  const std::vector<int> order = by_descending_area(areas);
  std::vector<int> ranks(areas.size());
  for (size_t i = 0; i < order.size(); ++i) {
    ranks[static_cast<size_t>(order[i])] = zigzag_rank(static_cast<int64_t>(i), cp_size);
  }
  return ranks;
}

}  // namespace tangram
