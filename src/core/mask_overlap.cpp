// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Finds two slices that cover a cell twice, by a sweep over query rows (after Shamos and Hoey, "Geometric intersection
// problems", 1976).
//
// While no two active slices overlap, their key intervals in any common row are disjoint and keep their order from row
// to row. A border moves by at most one key per row, too little to jump over a neighbour. So the first overlap is
// always between two neighbours, at the first row of one of them, or at the last row of the slice between them.
#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "tangram/mask.hpp"

namespace tangram {

namespace {

struct ActiveSlice {
  AttnSlice slice;  // canonical: sees something in each of its rows
  int64_t index = 0;
};

// Orders active slices by where their interval starts in the row of the sweep.
struct ByKeyInRow {
  const int64_t* row;
  bool operator()(const ActiveSlice* a, const ActiveSlice* b) const {
    const int64_t a_key = a->slice.keys_of(*row).begin;
    const int64_t b_key = b->slice.keys_of(*row).begin;
    return a_key != b_key ? a_key < b_key : a->index < b->index;
  }
};

bool overlap(const ActiveSlice* a, const ActiveSlice* b) { return !intersect(a->slice, b->slice).q_range.empty(); }

// Whether rectangles in the order of their first rows are seen to be disjoint. Rectangles that begin at a row are
// merged, in the order of their keys, into the rectangles open there. False also where another way is better: for
// slices of other shapes, in another order, or where many go on for long.
bool are_disjoint_blocks(std::span<const ActiveSlice> slices) {
  constexpr size_t kMostSteps = 32;  // for a slice, in the mean
  struct Open {
    Range keys;
    int64_t end;  // of its rows
  };
  std::vector<Open> open, begun, merged;
  size_t steps = 0;
  for (size_t i = 0; i < slices.size();) {
    const int64_t row = slices[i].slice.q_range.begin;
    begun.clear();
    for (; i < slices.size() && slices[i].slice.q_range.begin == row; ++i) {
      const AttnSlice& slice = slices[i].slice;
      if (slice.min_diag != kOpenMinDiag || slice.max_diag != kOpenMaxDiag) return false;
      begun.push_back({slice.k_range, slice.q_range.end});
    }
    if (i < slices.size() && slices[i].slice.q_range.begin < row) return false;
    const auto before = [](const Open& a, const Open& b) { return a.keys.begin < b.keys.begin; };
    if (!std::is_sorted(begun.begin(), begun.end(), before)) std::sort(begun.begin(), begun.end(), before);
    steps += open.size() + begun.size();
    if (steps > kMostSteps * slices.size()) return false;
    merged.clear();
    int64_t end = 0;  // of the keys of the last one
    const auto add = [&](const Open& next) {
      if (!merged.empty() && next.keys.begin < end) return false;
      merged.push_back(next);
      end = next.keys.end;
      return true;
    };
    auto other = begun.begin();
    for (const Open& going_on : open) {
      if (going_on.end <= row) continue;
      for (; other != begun.end() && before(*other, going_on); ++other) {
        if (!add(*other)) return false;
      }
      if (!add(going_on)) return false;
    }
    for (; other != begun.end(); ++other) {
      if (!add(*other)) return false;
    }
    std::swap(open, merged);
  }
  return true;
}

}  // namespace

OverlapPair find_overlap(std::span<const AttnSlice> slices) {
  std::vector<ActiveSlice> sweep;
  sweep.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const AttnSlice slice = canonical(slices[i]);
    if (!slice.q_range.empty()) sweep.push_back({slice, static_cast<int64_t>(i)});
  }
  // Consecutive documents, and blocks row by row, are checked without a sweep. Each slice begins behind the rows of the
  // one before, or behind its keys in the same rows.
  const auto may_meet = [](const ActiveSlice& a, const ActiveSlice& b) {
    if (b.slice.q_range.begin >= a.slice.q_range.end) return false;
    return b.slice.q_range != a.slice.q_range || b.slice.k_range.begin < a.slice.k_range.end;
  };
  if (std::adjacent_find(sweep.begin(), sweep.end(), may_meet) == sweep.end()) return {};
  if (are_disjoint_blocks(sweep)) return {};
  std::vector<const ActiveSlice*> starts;
  for (const ActiveSlice& entry : sweep) starts.push_back(&entry);
  std::vector<const ActiveSlice*> ends = starts;
  std::sort(starts.begin(), starts.end(),
            [](auto* a, auto* b) { return a->slice.q_range.begin < b->slice.q_range.begin; });
  std::sort(ends.begin(), ends.end(), [](auto* a, auto* b) { return a->slice.q_range.end < b->slice.q_range.end; });

  const auto pair_of = [](const ActiveSlice* a, const ActiveSlice* b) {
    return OverlapPair{std::min(a->index, b->index), std::max(a->index, b->index)};
  };
  int64_t row = 0;
  std::set<const ActiveSlice*, ByKeyInRow> active(ByKeyInRow{&row});
  size_t next_end = 0;
  // Ends slices up to `limit`; the two that become neighbours are compared. Returns a pair that overlaps, if any.
  const auto retire = [&](int64_t limit) -> OverlapPair {
    for (; next_end < ends.size() && ends[next_end]->slice.q_range.end <= limit; ++next_end) {
      row = ends[next_end]->slice.q_range.end - 1;  // the last row in which it still has an interval to be found by
      const auto at = active.erase(active.find(ends[next_end]));
      if (at == active.begin() || at == active.end()) continue;
      if (overlap(*std::prev(at), *at)) return pair_of(*std::prev(at), *at);
    }
    return {};
  };
  for (const ActiveSlice* entry : starts) {
    if (const OverlapPair pair = retire(entry->slice.q_range.begin); pair.first >= 0) return pair;
    row = entry->slice.q_range.begin;
    const auto at = active.insert(entry).first;
    if (at != active.begin() && overlap(*std::prev(at), entry)) return pair_of(*std::prev(at), entry);
    if (std::next(at) != active.end() && overlap(entry, *std::next(at))) return pair_of(entry, *std::next(at));
  }
  return retire(std::numeric_limits<int64_t>::max());
}

}  // namespace tangram
