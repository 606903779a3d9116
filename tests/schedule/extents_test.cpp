// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The orders of extents against sorted ones, and the spread against a walk over all work tiles.
#include "schedule/extents.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace tangram::schedule {
namespace {

Extents sorted_extents(const std::vector<Extent>& of_keys) {
  Extents extents{of_keys, {}, std::vector<size_t>(of_keys.size()), {}, {}};
  std::iota(extents.order.begin(), extents.order.end(), size_t{0});
  std::stable_sort(extents.order.begin(), extents.order.end(),
                   [&](size_t a, size_t b) { return of_keys[a].count > of_keys[b].count; });
  std::vector<size_t> by_first = extents.order;
  std::stable_sort(by_first.begin(), by_first.end(),
                   [&](size_t a, size_t b) { return of_keys[a].first < of_keys[b].first; });
  std::vector<size_t> group(of_keys.size(), 0);
  std::vector<int64_t> longest;
  int64_t end = -1;
  for (const size_t i : by_first) {
    if (of_keys[i].count == 0) continue;
    if (of_keys[i].first >= end) longest.push_back(0);
    group[i] = longest.size() - 1;
    longest.back() = std::max(longest.back(), of_keys[i].count);
    end = std::max(end, of_keys[i].end);
  }
  const auto rank = [&](size_t i) {
    return of_keys[i].count == 0 ? std::pair<int64_t, size_t>(1, 0) : std::pair(-longest[group[i]], group[i]);
  };
  extents.by_group = extents.order;
  std::stable_sort(extents.by_group.begin(), extents.by_group.end(),
                   [&](size_t a, size_t b) { return rank(a) < rank(b); });
  for (size_t at = 1; at <= extents.by_group.size(); ++at) {
    const bool ends = at == extents.by_group.size() || rank(extents.by_group[at]) != rank(extents.by_group[at - 1]);
    if (ends) extents.group_ends.push_back(at);
  }
  return extents;
}

TEST(Extents, OrdersAreThoseOfSorting) {
  std::mt19937 rng(3);
  for (int trial = 0; trial < 5000; ++trial) {
    std::vector<Extent> of_keys(rng() % 12);
    for (Extent& extent : of_keys) {
      if (rng() % 4 == 0) continue;  // keys that no query sees
      extent.first = rng() % 20;
      extent.end = extent.first + 1 + rng() % 6;
      extent.count = 1 + rng() % 5;
    }
    const Extents expected = sorted_extents(of_keys), found = make_extents(of_keys);
    ASSERT_EQ(found.order, expected.order) << trial;
    ASSERT_EQ(found.by_group, expected.by_group) << trial;
    ASSERT_EQ(found.group_ends, expected.group_ends) << trial;
  }
}

double walked_spread(const TileList& tiles, const std::vector<RangeQueryTiles>& run_tiles, int64_t num_q_tiles) {
  const int64_t samples = std::min<int64_t>(64, num_q_tiles);
  double deviation = 0, sum = 0;
  for (int64_t s = 0; s < samples; ++s) {
    const int64_t tile = (2 * s + 1) * num_q_tiles / (2 * samples);
    std::vector<int64_t> lengths;
    for (const MaskTile& work_tile : tiles.work_tiles) {
      int64_t length = 0;
      bool meets = false;
      for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
        const RangeQueryTiles& run = run_tiles[static_cast<size_t>(r)];
        meets |= run.first <= tile && tile < run.end;
        length += run.end - run.first;
      }
      if (meets) lengths.push_back(length);
    }
    if (lengths.empty()) continue;
    std::sort(lengths.begin(), lengths.end());
    double squares = 0;
    for (const int64_t length : lengths) {
      squares += std::pow(static_cast<double>(length - lengths[lengths.size() / 2]), 2);
      sum += static_cast<double>(length);
    }
    deviation += std::sqrt(squares * static_cast<double>(lengths.size()));
  }
  return sum == 0 ? 0 : 0.85 * deviation / sum;
}

TEST(Extents, SpreadIsThatOfAWalkOverAllWorkTiles) {
  std::mt19937 rng(4);
  for (int trial = 0; trial < 500; ++trial) {
    const int64_t num_q_tiles = rng() % 200;
    TileList tiles;
    std::vector<RangeQueryTiles> run_tiles;
    for (unsigned work_tiles = rng() % 20; work_tiles > 0 && num_q_tiles > 0; --work_tiles) {
      MaskTile work_tile;
      work_tile.run_begin = static_cast<int32_t>(run_tiles.size());
      for (unsigned runs = rng() % 4; runs > 0; --runs) {  // which may share tiles
        const auto first = static_cast<int32_t>(rng() % static_cast<uint64_t>(num_q_tiles));
        const auto left = static_cast<uint64_t>(num_q_tiles - first);
        run_tiles.push_back({first, first + 1 + static_cast<int32_t>(rng() % left), 0});
      }
      work_tile.run_end = static_cast<int32_t>(run_tiles.size());
      tiles.work_tiles.push_back(work_tile);
    }
    ASSERT_EQ(length_spread(tiles, run_tiles, num_q_tiles), walked_spread(tiles, run_tiles, num_q_tiles)) << trial;
  }
}

}  // namespace
}  // namespace tangram::schedule
