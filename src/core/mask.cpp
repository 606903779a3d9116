// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Validation and canonical form of masks.
#include "tangram/mask.hpp"

#include <algorithm>
#include <functional>

#include "core/require.hpp"

namespace tangram {

namespace {

int64_t first_key(const AttnSlice& slice) { return slice.keys_of(slice.q_range.begin).begin; }

// Sorts elements whose groups are already in order, as blocks are row by row. `group_of` an element only grows, and
// `before` decides within a group. Else sorts all by `before`, which decides by group first.
template <class T, class GroupOf, class Before>
void sort_in_groups(std::vector<T>& values, const GroupOf& group_of, const Before& before) {
  if (std::is_sorted(values.begin(), values.end(), before)) return;
  const auto grows = [&](const T& a, const T& b) { return group_of(a) < group_of(b); };
  if (!std::is_sorted(values.begin(), values.end(), grows)) {
    std::sort(values.begin(), values.end(), before);
    return;
  }
  for (auto first = values.begin(); first != values.end();) {
    const auto last = std::find_if(first + 1, values.end(), [&](const T& other) { return grows(*first, other); });
    if (last - first > 1) std::sort(first, last, before);
    first = last;
  }
}

// The smallest slice that holds both canonical slices. Where a diagonal is open, the corner of the rectangle stands in.
AttnSlice enclosing(const AttnSlice& a, const AttnSlice& b) {
  const auto lowest = [](const AttnSlice& s) {
    return s.min_diag > kOpenMinDiag ? s.min_diag : s.k_range.begin - (s.q_range.end - 1);
  };
  const auto highest = [](const AttnSlice& s) {
    return s.max_diag < kOpenMaxDiag ? s.max_diag : s.k_range.end - 1 - s.q_range.begin;
  };
  return canonical({hull(a.q_range, b.q_range), hull(a.k_range, b.k_range), std::min(lowest(a), lowest(b)),
                    std::max(highest(a), highest(b))});
}

// A rectangle whose borders stand still from row to row: what continues it has the same keys, or is a single row.
bool is_upright(const AttnSlice& slice) {
  return slice.min_diag == kOpenMinDiag && slice.max_diag == kOpenMaxDiag && slice.q_range.size() > 1;
}

// Joins disjoint a and b into `joined` if their union is one slice: iff nothing else fits into the enclosing one.
bool try_join(const AttnSlice& a, const AttnSlice& b, AttnSlice& joined) {
  if (is_upright(a) && is_upright(b) && a.q_range != b.q_range && a.k_range != b.k_range) return false;
  // Slices of the same rows with a gap of keys between them.
  if (a.q_range == b.q_range && (a.k_range.end < b.k_range.begin || b.k_range.end < a.k_range.begin)) return false;
  joined = enclosing(a, b);
  return area(joined) == area(a) + area(b);
}

void sort_by_rows(std::vector<AttnSlice>& slices) {
  const auto before = [](const AttnSlice& a, const AttnSlice& b) {
    if (a.q_range != b.q_range) return a.q_range < b.q_range;
    return first_key(a) < first_key(b);
  };
  sort_in_groups(slices, [](const AttnSlice& slice) { return slice.q_range.begin; }, before);
}

// Joins slices over the same query rows that touch side by side. Returns whether anything changed.
bool join_columns(std::vector<AttnSlice>& slices) {
  sort_by_rows(slices);
  size_t num_kept = 0;
  for (const AttnSlice& slice : slices) {
    AttnSlice joined;
    if (num_kept > 0 && slices[num_kept - 1].q_range == slice.q_range &&
        try_join(slices[num_kept - 1], slice, joined)) {
      slices[num_kept - 1] = joined;
    } else {
      slices[num_kept++] = slice;
    }
  }
  const bool changed = num_kept < slices.size();
  slices.resize(num_kept);
  return changed;
}

// Joins slices where one ends in the query row above the first of the other. From one row of a slice to the next its
// left border moves by 0 or 1. So the continuation, if any, starts at one of two keys.
bool join_rows(std::vector<AttnSlice>& slices) {
  struct Start {
    int64_t row;
    int64_t key;
    size_t slice;
    bool operator<(const Start& other) const { return row != other.row ? row < other.row : key < other.key; }
  };
  // Disjoint slices cannot start at the same cell, so that a start names one slice.
  std::vector<Start> starts;
  starts.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) starts.push_back({slices[i].q_range.begin, first_key(slices[i]), i});
  sort_in_groups(starts, [](const Start& start) { return start.row; }, std::less<>());
  // The first start from `behind` on that is not before `wanted`. What is wanted mostly lies near what was wanted
  // before: documents follow one another, and blocks of a row continue in the next one.
  auto near = starts.end();
  const auto first_from = [&](auto behind, const Start& wanted) {
    constexpr int kSteps = 4;
    for (int step = 0; step < kSteps; ++step) {
      if (near != behind && !(*(near - 1) < wanted)) {
        --near;
      } else if (near != starts.end() && *near < wanted) {
        ++near;
      } else {
        return near;
      }
    }
    return std::lower_bound(behind, starts.end(), wanted);
  };
  bool changed = false;
  // From the last row up, so that a column of pieces folds into its topmost in one pass.
  for (size_t i = starts.size(); i-- > 0;) {
    AttnSlice& upper = slices[starts[i].slice];
    const int64_t last_key = upper.keys_of(upper.q_range.end - 1).begin;
    const Start wanted{upper.q_range.end, last_key, 0};
    const auto behind = starts.begin() + static_cast<int64_t>(i) + 1;
    near = first_from(behind, wanted);
    for (auto next = near; next != starts.end() && next->row == upper.q_range.end && next->key <= last_key + 1;
         ++next) {
      AttnSlice& lower = slices[next->slice];
      AttnSlice joined;
      if (lower.q_range.empty() || !try_join(upper, lower, joined)) continue;
      lower = {};
      upper = joined;
      changed = true;
      break;
    }
  }
  if (changed) std::erase_if(slices, [](const AttnSlice& slice) { return slice.q_range.empty(); });
  return changed;
}

// FNV-1a over 64-bit words, with an avalanche: stable across machines, unlike std::hash.
constexpr uint64_t with_word(uint64_t hash, int64_t value) {
  hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3;
  return hash ^ hash >> 29;
}

// Four words of a slice in lanes of their own: one after the other they would wait for each other's products.
uint64_t hash_of(std::span<const AttnSlice> slices) {
  uint64_t lanes[] = {0xcbf29ce484222325, 0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9};
  for (const AttnSlice& slice : slices) {
    lanes[0] = with_word(lanes[0], slice.q_range.begin);
    lanes[1] = with_word(lanes[1], slice.q_range.end);
    lanes[2] = with_word(lanes[2], slice.k_range.begin);
    lanes[3] = with_word(lanes[3], slice.k_range.end);
    if (slice.min_diag != kOpenMinDiag) lanes[0] = with_word(lanes[0], ~slice.min_diag);
    if (slice.max_diag != kOpenMaxDiag) lanes[1] = with_word(lanes[1], ~slice.max_diag);
  }
  uint64_t hash = lanes[0];
  for (const int lane : {1, 2, 3}) hash = with_word(hash, static_cast<int64_t>(lanes[lane]));
  return hash;
}

void validate(int64_t seqlen_q, int64_t seqlen_k, std::span<const AttnSlice> slices) {
  // Beyond this, areas and products of strides would no longer fit into 64 bits.
  constexpr int64_t kMaxSeqlen = int64_t{1} << 31;
  require(0 <= seqlen_q && seqlen_q <= kMaxSeqlen && 0 <= seqlen_k && seqlen_k <= kMaxSeqlen,
          "Mask: sequence lengths must lie in [0, 2^31] (got seqlen_q={}, seqlen_k={})", seqlen_q, seqlen_k);
  for (size_t i = 0; i < slices.size(); ++i) {
    const AttnSlice& slice = slices[i];
    require(0 <= slice.q_range.begin && slice.q_range.begin <= slice.q_range.end && slice.q_range.end <= seqlen_q,
            "Mask: slices[{}].q_range must lie in [0, {}) (got [{}, {}))", i, seqlen_q, slice.q_range.begin,
            slice.q_range.end);
    require(0 <= slice.k_range.begin && slice.k_range.begin <= slice.k_range.end && slice.k_range.end <= seqlen_k,
            "Mask: slices[{}].k_range must lie in [0, {}) (got [{}, {}))", i, seqlen_k, slice.k_range.begin,
            slice.k_range.end);
  }
}

}  // namespace

std::vector<AttnSlice> merge_touching(std::vector<AttnSlice> slices) {
  bool changed = slices.size() > 1;
  while (changed) {
    changed = join_columns(slices);
    changed = join_rows(slices) || changed;
  }
  sort_by_rows(slices);
  return slices;
}

Mask::Mask(int64_t seqlen_q, int64_t seqlen_k, std::vector<AttnSlice> slices)
    : seqlen_q_(seqlen_q), seqlen_k_(seqlen_k) {
  validate(seqlen_q, seqlen_k, slices);
  const OverlapPair overlap = find_overlap(slices);
  if (overlap.first >= 0) {
    require(false, "Mask: slices must not cover a cell twice (got slices[{}]={} and slices[{}]={})", overlap.first,
            to_string(slices[overlap.first]), overlap.second, to_string(slices[overlap.second]));
  }
  for (AttnSlice& slice : slices) slice = canonical(slice);
  std::erase_if(slices, [](const AttnSlice& slice) { return slice.q_range.empty(); });
  set_cells(merge_touching(std::move(slices)));
}

void Mask::set_cells(std::vector<AttnSlice> slices) {
  auto cells = std::make_shared<Cells>();
  cells->slices = std::move(slices);
  cells->hash = hash_of(cells->slices);
  for (const AttnSlice& slice : cells->slices) cells->area += tangram::area(slice);
  cells_ = std::move(cells);
}

uint64_t Mask::hash() const {
  return with_word(with_word(cells_ == nullptr ? hash_of({}) : cells_->hash, seqlen_q_), seqlen_k_);
}

bool Mask::operator==(const Mask& other) const {
  if (seqlen_q_ != other.seqlen_q_ || seqlen_k_ != other.seqlen_k_) return false;
  return cells_ == other.cells_ || std::ranges::equal(slices(), other.slices());
}

Mask Mask::padded(int64_t seqlen_q, int64_t seqlen_k) const {
  require(seqlen_q >= seqlen_q_ && seqlen_k >= seqlen_k_,
          "Mask::padded: lengths must not shrink (got {} x {} for a mask of {} x {})", seqlen_q, seqlen_k, seqlen_q_,
          seqlen_k_);
  Mask result = *this;  // canonical form does not depend on the lengths
  result.seqlen_q_ = seqlen_q;
  result.seqlen_k_ = seqlen_k;
  return result;
}

Mask Mask::cloned() const {
  Mask result = *this;
  if (cells_ != nullptr) result.cells_ = std::make_shared<const Cells>(*cells_);
  return result;
}

}  // namespace tangram
