// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/grid/documents.hpp"

#include <algorithm>
#include <numeric>

namespace tangram {

namespace {

class DisjointSets {
 public:
  explicit DisjointSets(size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), size_t{0}); }
  size_t root(size_t item) {
    while (parent_[item] != item) item = parent_[item] = parent_[parent_[item]];
    return item;
  }
  void join(size_t a, size_t b) { parent_[root(a)] = root(b); }

 private:
  std::vector<size_t> parent_;
};

/// Units that a slice touches on one axis.
struct Touched {
  Range units;
  size_t slice = 0;
};

/// Units that overlapping slices touch: they belong to one document.
struct LocalRange {
  Range units;
  size_t slice = 0;  // one of them
};

Range in_units(const Range& rows, int64_t unit) { return {rows.begin / unit, (rows.end + unit - 1) / unit}; }

std::vector<LocalRange> join_overlapping(std::vector<Touched> touched, DisjointSets& sets) {
  std::sort(touched.begin(), touched.end(), [](const Touched& a, const Touched& b) { return a.units < b.units; });
  std::vector<LocalRange> local_ranges;
  for (const Touched& next : touched) {
    if (!local_ranges.empty() && next.units.begin < local_ranges.back().units.end) {
      sets.join(local_ranges.back().slice, next.slice);
      local_ranges.back().units.end = std::max(local_ranges.back().units.end, next.units.end);
    } else {
      local_ranges.push_back({next.units, next.slice});
    }
  }
  return local_ranges;
}

void append(std::vector<Range>& ranges, const Range& next) {
  if (!ranges.empty() && ranges.back().end == next.begin) {
    ranges.back().end = next.end;
  } else {
    ranges.push_back(next);
  }
}

int64_t total_size(const std::vector<Range>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), int64_t{0},
                         [](int64_t sum, const Range& range) { return sum + range.size(); });
}

}  // namespace

int64_t MaskDocument::q_size() const { return total_size(q_rows); }
int64_t MaskDocument::k_size() const { return total_size(k_rows); }

std::vector<MaskDocument> find_documents(const Mask& mask, int64_t unit) {
  const auto slices = mask.slices();
  DisjointSets sets(slices.size());
  std::vector<Touched> queries, keys;
  for (size_t s = 0; s < slices.size(); ++s) {
    queries.push_back({in_units(slices[s].q_range, unit), s});
    (mask.is_self_attention() ? queries : keys).push_back({in_units(slices[s].k_range, unit), s});
  }
  const std::vector<LocalRange> q_local_ranges = join_overlapping(std::move(queries), sets);
  const std::vector<LocalRange> k_local_ranges = join_overlapping(std::move(keys), sets);

  constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<size_t> document_of_root(slices.size(), kNone);
  std::vector<MaskDocument> documents;
  for (const LocalRange& local_range : q_local_ranges) {
    size_t& document = document_of_root[sets.root(local_range.slice)];
    if (document == kNone) {
      document = documents.size();
      documents.emplace_back();
    }
    append(documents[document].q_rows, local_range.units);
  }
  for (const LocalRange& local_range : k_local_ranges) {
    append(documents[document_of_root[sets.root(local_range.slice)]].k_rows, local_range.units);
  }
  for (size_t s = 0; s < slices.size(); ++s) {
    MaskDocument& document = documents[document_of_root[sets.root(s)]];
    document.slices.push_back(s);
    document.area += area(slices[s]);
  }
  if (mask.is_self_attention()) {
    for (MaskDocument& document : documents) document.k_rows = document.q_rows;
  }
  return documents;
}

std::vector<int> sub_group_sizes(int cp_size) {
  std::vector<int> sizes = {1};
  for (int factor = 2; sizes.back() < cp_size; ++factor) {
    while (cp_size / sizes.back() % factor == 0) sizes.push_back(sizes.back() * factor);
  }
  return sizes;
}

}  // namespace tangram
