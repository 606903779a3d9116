// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/extents.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "schedule/tile_schedule_heuristic.hpp"

namespace tangram::schedule {

namespace {

/// The work tiles of a list: a counting sort by granules of rows, in which only few tiles begin.
std::vector<size_t> in_order_of_rows(const TileList& tiles) {
  constexpr int64_t kGranule = 64;
  const auto granule_of = [](const MaskTile& work_tile) { return static_cast<size_t>(work_tile.row_begin / kGranule); };
  std::vector<int32_t> place(static_cast<size_t>(tiles.seqlen_q / kGranule) + 2);
  for (const MaskTile& work_tile : tiles.work_tiles) ++place[granule_of(work_tile) + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  std::vector<size_t> order(tiles.work_tiles.size());
  for (size_t i = 0; i < order.size(); ++i) order[static_cast<size_t>(place[granule_of(tiles.work_tiles[i])]++)] = i;
  const auto row = [&](size_t at) { return tiles.work_tiles[order[at]].row_begin; };
  for (size_t i = 1; i < order.size(); ++i) {
    for (size_t at = i; at > 0 && row(at) < row(at - 1); --at) std::swap(order[at], order[at - 1]);
  }
  return order;
}

/// The indices of extents, longest first, ties in order of keys: a counting sort, since counts are small numbers.
std::vector<size_t> longest_first(const std::vector<Extent>& of_keys) {
  int64_t most = 0;
  for (const Extent& extent : of_keys) most = std::max(most, extent.count);
  std::vector<size_t> place(static_cast<size_t>(most) + 2);
  for (const Extent& extent : of_keys) ++place[static_cast<size_t>(most - extent.count) + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  std::vector<size_t> order(of_keys.size());
  for (size_t i = 0; i < of_keys.size(); ++i) order[place[static_cast<size_t>(most - of_keys[i].count)]++] = i;
  return order;
}

/// Fills by_group and group_ends: work tiles whose query tiles overlap, directly or through others, are one group.
void find_groups(Extents& extents) {
  const auto& of_keys = extents.of_keys;
  const auto begins_before = [&](size_t a, size_t b) { return of_keys[a].first < of_keys[b].first; };
  std::vector<size_t> by_first(of_keys.size());
  std::iota(by_first.begin(), by_first.end(), size_t{0});
  if (!std::is_sorted(by_first.begin(), by_first.end(), begins_before)) {
    std::sort(by_first.begin(), by_first.end(), begins_before);
  }
  std::vector<size_t> group(of_keys.size(), 0);
  std::vector<int64_t> longest;  // work tile of each group
  std::vector<size_t> sizes;
  int64_t end = -1;
  for (const size_t i : by_first) {
    if (of_keys[i].count == 0) continue;
    if (of_keys[i].first >= end) {
      longest.push_back(0);
      sizes.push_back(0);
    }
    group[i] = longest.size() - 1;
    ++sizes.back();
    longest.back() = std::max(longest.back(), of_keys[i].count);
    end = std::max(end, of_keys[i].end);
  }
  std::vector<size_t> groups(longest.size());
  std::iota(groups.begin(), groups.end(), size_t{0});
  std::stable_sort(groups.begin(), groups.end(), [&](size_t a, size_t b) { return longest[a] > longest[b]; });
  std::vector<size_t> place(longest.size());
  size_t next = 0;
  for (const size_t g : groups) {
    place[g] = next;
    next += sizes[g];
    extents.group_ends.push_back(next);
  }
  if (next < of_keys.size()) extents.group_ends.push_back(of_keys.size());  // tiles that no query sees
  extents.by_group.resize(of_keys.size());
  for (const size_t i : extents.order) extents.by_group[of_keys[i].count == 0 ? next++ : place[group[i]]++] = i;
}

/// The smallest that half of them are below. Work tiles of causal masks lie in the order of their lengths.
int64_t median_of(std::span<int64_t> lengths) {
  const size_t half = lengths.size() / 2;
  if (std::is_sorted(lengths.begin(), lengths.end())) return lengths[half];
  if (std::is_sorted(lengths.rbegin(), lengths.rend())) return lengths[lengths.size() - 1 - half];
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(half);
  std::nth_element(lengths.begin(), middle, lengths.end());
  return *middle;
}

}  // namespace

Extents make_extents(std::vector<Extent> of_keys) {
  Extents result;
  result.of_keys = std::move(of_keys);
  result.order = longest_first(result.of_keys);
  find_groups(result);
  return result;
}

Extents measure_extents(const TileList& tiles, const std::vector<RangeQueryTiles>& run_tiles) {
  std::vector<size_t> work_tiles = in_order_of_rows(tiles);
  std::vector<Extent> of_keys;
  of_keys.reserve(work_tiles.size());
  for (const size_t i : work_tiles) {
    const MaskTile& work_tile = tiles.work_tiles[i];
    Extent extent;
    for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
      const RangeQueryTiles& run = run_tiles[static_cast<size_t>(r)];
      extent.first = r == work_tile.run_begin ? run.first : std::min<int64_t>(extent.first, run.first);
      extent.end = std::max<int64_t>(extent.end, run.end);
      extent.count += run.end - run.first;
    }
    of_keys.push_back(extent);
  }
  Extents result = make_extents(std::move(of_keys));
  result.work_tile = std::move(work_tiles);
  return result;
}

Visits visits_of(const Extents& extents) {
  Visits visits;
  for (const Extent& extent : extents.of_keys) {
    visits.tiles += extent.count;
    visits.between += extent.end - extent.first;
    visits.work_tiles += extent.count > 0;
  }
  for (const Extent& extent : extents.of_keys) {
    visits.long_work_tiles += is_long(extent.count, visits.work_tiles, visits.tiles);
  }
  return visits;
}

double length_spread(const TileList& tiles, const std::vector<RangeQueryTiles>& run_tiles, int64_t num_q_tiles) {
  constexpr int64_t kSamples = 64;
  const auto samples = static_cast<size_t>(std::min(kSamples, num_q_tiles));
  std::vector<uint8_t> sample_from(static_cast<size_t>(num_q_tiles) + 1);  // of each tile, the first at it or behind
  size_t behind = 0;
  for (size_t s = 0; s < samples; ++s) {
    const size_t sampled = (2 * s + 1) * static_cast<size_t>(num_q_tiles) / (2 * samples);
    for (; behind <= sampled; ++behind) sample_from[behind] = static_cast<uint8_t>(s);
  }
  for (; behind < sample_from.size(); ++behind) sample_from[behind] = static_cast<uint8_t>(samples);
  // Calls visit(first sample, last + 1, length of the work tile) for all work tiles that meet at sampled tiles.
  const auto visit_work_tiles = [&](const auto& visit) {
    std::array<const MaskTile*, kSamples> latest{};
    for (const MaskTile& work_tile : tiles.work_tiles) {
      const std::span runs(run_tiles.data() + work_tile.run_begin,
                           static_cast<size_t>(work_tile.run_end - work_tile.run_begin));
      int64_t length = 0;
      for (const RangeQueryTiles& run : runs) length += run.end - run.first;
      for (const RangeQueryTiles& run : runs) {
        const size_t first = sample_from[static_cast<size_t>(run.first)];
        const size_t end = sample_from[static_cast<size_t>(run.end)];
        if (runs.size() == 1) {
          visit(first, end, length);
          continue;
        }
        for (size_t s = first; s < end; ++s) {
          if (std::exchange(latest[s], &work_tile) != &work_tile) visit(s, s + 1, length);
        }
      }
    }
  };
  std::array<int64_t, kSamples + 1> more{};  // additional work tiles at a sample, beside the one before
  visit_work_tiles([&](size_t first, size_t end, int64_t) { ++more[first], --more[end]; });
  std::array<size_t, kSamples + 1> begins{};
  int64_t count = 0;
  for (size_t s = 0; s < kSamples; ++s) begins[s + 1] = begins[s] + static_cast<size_t>(count += more[s]);
  std::vector<int64_t> all_lengths(begins.back());
  std::array<size_t, kSamples + 1> next = begins;
  visit_work_tiles([&](size_t first, size_t end, int64_t length) {
    for (size_t s = first; s < end; ++s) all_lengths[next[s]++] = length;
  });
  double deviation = 0, sum = 0;
  for (size_t s = 0; s < samples; ++s) {
    const std::span lengths(all_lengths.begin() + static_cast<std::ptrdiff_t>(begins[s]), begins[s + 1] - begins[s]);
    if (lengths.empty()) continue;
    const int64_t median = median_of(lengths);
    double squares = 0;
    for (const int64_t length : lengths) {
      squares += static_cast<double>((length - median) * (length - median));
      sum += static_cast<double>(length);
    }
    deviation += std::sqrt(squares * static_cast<double>(lengths.size()));
  }
  // For causal masks 0.85 of the root mean square is the mean deviation.
  return sum == 0 ? 0 : 0.85 * deviation / sum;
}

Direction choose_direction(const Extents& extents) {
  int64_t ascending = 0, descending = 0;  // steps that a neighbour's work tile is late
  int64_t pairs = 0, same_first = 0, same_end = 0;
  for (size_t i = 0; i + 1 < extents.of_keys.size(); ++i) {
    const Extent *before = &extents.of_keys[i], *after = before + 1;
    if (std::min(before->end, after->end) <= std::max(before->first, after->first)) continue;
    if (after->count > before->count) std::swap(before, after);  // the longer one is scheduled first
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
