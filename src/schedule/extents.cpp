// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/extents.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace tangram::schedule {

namespace {

/// Fills by_group and group_ends: items whose query tiles overlap, directly or through others, are one group.
void find_groups(Extents& extents) {
  const auto& of_keys = extents.of_keys;
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
    if (at == extents.by_group.size() || rank(extents.by_group[at]) != rank(extents.by_group[at - 1]))
      extents.group_ends.push_back(at);
  }
}

}  // namespace

Extents make_extents(std::vector<Extent> of_keys) {
  Extents result;
  result.of_keys = std::move(of_keys);
  result.order.resize(result.of_keys.size());
  std::iota(result.order.begin(), result.order.end(), size_t{0});
  std::stable_sort(result.order.begin(), result.order.end(),
                   [&](size_t a, size_t b) { return result.of_keys[a].count > result.of_keys[b].count; });
  find_groups(result);
  return result;
}

Extents measure_extents(const TileList& tiles, const std::vector<RunTiles>& run_tiles) {
  std::vector<size_t> items(tiles.items.size());
  std::iota(items.begin(), items.end(), size_t{0});
  std::sort(items.begin(), items.end(),
            [&](size_t a, size_t b) { return tiles.items[a].row_begin < tiles.items[b].row_begin; });
  std::vector<Extent> of_keys;
  for (const size_t i : items) {
    const TileItem& item = tiles.items[i];
    Extent extent;
    for (int32_t r = item.run_begin; r < item.run_end; ++r) {
      const RunTiles& run = run_tiles[static_cast<size_t>(r)];
      extent.first = r == item.run_begin ? run.first : std::min<int64_t>(extent.first, run.first);
      extent.end = std::max<int64_t>(extent.end, run.end);
      extent.count += run.end - run.first;
    }
    of_keys.push_back(extent);
  }
  Extents result = make_extents(std::move(of_keys));
  result.item = std::move(items);
  return result;
}

double length_spread(const TileList& tiles, const std::vector<RunTiles>& run_tiles, int64_t num_q_tiles) {
  constexpr int64_t kSamples = 64;
  const int64_t samples = std::min(kSamples, num_q_tiles);
  double deviation = 0, sum = 0;
  for (int64_t s = 0; s < samples; ++s) {
    const int64_t tile = (2 * s + 1) * num_q_tiles / (2 * samples);
    std::vector<int64_t> lengths;
    for (const TileItem& item : tiles.items) {
      int64_t length = 0;
      bool meets = false;
      for (int32_t r = item.run_begin; r < item.run_end; ++r) {
        const RunTiles& run = run_tiles[static_cast<size_t>(r)];
        meets |= run.first <= tile && tile < run.end;
        length += run.end - run.first;
      }
      if (meets) lengths.push_back(length);
    }
    if (lengths.empty()) continue;
    const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
    std::nth_element(lengths.begin(), middle, lengths.end());
    const int64_t median = *middle;
    double squares = 0;
    for (const int64_t length : lengths) {
      squares += static_cast<double>((length - median) * (length - median));
      sum += static_cast<double>(length);
    }
    deviation += std::sqrt(squares * static_cast<double>(lengths.size()));
  }
  // For causal masks 0.85 of the root mean square is the mean deviation, to which the penalties were fitted.
  return sum == 0 ? 0 : 0.85 * deviation / sum;
}

Direction choose_direction(const Extents& extents) {
  int64_t ascending = 0, descending = 0;  // steps that a neighbour's item is late
  int64_t pairs = 0, same_first = 0, same_end = 0;
  for (size_t i = 0; i + 1 < extents.of_keys.size(); ++i) {
    const Extent *before = &extents.of_keys[i], *after = before + 1;
    if (std::min(before->end, after->end) <= std::max(before->first, after->first)) continue;
    if (after->count > before->count) std::swap(before, after);  // the longer one is dealt first
    ascending += std::max<int64_t>(0, after->first - before->first);
    descending += std::max<int64_t>(0, before->end - after->end);
    ++pairs;
    same_first += before->first == after->first;
    same_end += before->end == after->end;
  }
  const bool down = descending <= ascending;
  return {down, (down ? same_end : same_first) * 2 > pairs};
}

}  // namespace tangram::schedule
