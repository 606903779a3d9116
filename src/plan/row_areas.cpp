// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The number of keys that a row sees is linear between the (at most two) rows of a slice where a diagonal starts or
// stops to bind. So every slice changes it and its slope at no more than four rows.
#include "plan/row_areas.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace tangram {

namespace {

struct Change {
  int64_t row;
  int64_t keys;   // that rows from `row` on see more
  int64_t slope;  // by which they see more from row to row
};

// One change for each row of a coarse grid, if all lie on one, as begins and ends of blocks do. Added up in its cells
// instead of sorted. False where the grid is not coarse.
bool add_up_on_grid(std::vector<Change>& changes) {
  constexpr int64_t kMostCells = 4;  // for a change: less than sorting it takes
  int64_t last = 0;                  // the end of all, at which the last cell may be cut
  for (const Change& change : changes) last = std::max(last, change.row);
  uint64_t rows = 0;
  for (const Change& change : changes) rows |= change.row < last ? static_cast<uint64_t>(change.row) : 0;
  if (rows == 0) return false;
  const int shift = std::countr_zero(rows);
  const auto cell_of = [&](int64_t row) { return static_cast<size_t>((row + (int64_t{1} << shift) - 1) >> shift); };
  if (std::ssize(changes) * kMostCells <= static_cast<int64_t>(cell_of(last))) return false;
  std::vector<Change> cells(cell_of(last) + 1, {-1, 0, 0});
  for (const Change& change : changes) {
    Change& cell = cells[cell_of(change.row)];
    cell.row = change.row;
    cell.keys += change.keys;
    cell.slope += change.slope;
  }
  std::erase_if(cells, [](const Change& cell) { return cell.row < 0; });
  changes = std::move(cells);
  return true;
}

std::vector<Change> changes_of(std::span<const AttnSlice> slices) {
  std::vector<Change> changes;
  changes.reserve(slices.size() * 3);
  for (const AttnSlice& slice : slices) {
    const Range q = slice.q_range;
    const Range k = slice.k_range;
    // From row `lower_from` on min_diag is the left border; before row `upper_until` max_diag is the right one.
    const int64_t lower_from = slice.min_diag > kOpenMinDiag ? k.begin - slice.min_diag : q.end;
    const int64_t upper_until = slice.max_diag < kOpenMaxDiag ? k.end - slice.max_diag - 1 : q.begin;
    for (int64_t row = q.begin; row < q.end;) {
      const bool lower = row >= lower_from;
      const bool upper = row < upper_until;
      int64_t end = q.end;
      if (!lower) end = std::min(end, lower_from);
      if (upper) end = std::min(end, upper_until);
      const int64_t slope = static_cast<int64_t>(upper) - static_cast<int64_t>(lower);
      const int64_t keys = slice.keys_of(row).size();
      changes.push_back({row, keys, slope});
      changes.push_back({end, -(keys + slope * (end - row)), -slope});
      row = end;
    }
  }
  const auto before = [](const Change& a, const Change& b) { return a.row < b.row; };
  if (!std::is_sorted(changes.begin(), changes.end(), before) && !add_up_on_grid(changes)) {
    std::sort(changes.begin(), changes.end(), before);
  }
  return changes;
}

}  // namespace

RowAreas::RowAreas(std::span<const AttnSlice> slices, int64_t num_rows) {
  const std::vector<Change> changes = changes_of(slices);
  pieces_.reserve(changes.size() + 1);
  pieces_.push_back({});
  for (const Change& change : changes) {
    const Piece last = pieces_.back();
    if (change.row > last.row) {
      const int64_t n = change.row - last.row;
      pieces_.push_back({change.row, last.area + n * last.keys + last.slope * (n * (n - 1) / 2),
                         last.keys + n * last.slope, last.slope});
    }
    pieces_.back().keys += change.keys;
    pieces_.back().slope += change.slope;
  }
  // A few buckets for each piece, so that looking one up takes a step or two.
  while ((num_rows >> shift_) > 4 * static_cast<int64_t>(pieces_.size())) ++shift_;
  first_.reserve(static_cast<size_t>(num_rows >> shift_) + 1);
  uint32_t piece = 0;
  for (int64_t row = 0; row <= num_rows; row += int64_t{1} << shift_) {
    while (piece + 1 < pieces_.size() && pieces_[piece + 1].row <= row) ++piece;
    first_.push_back(piece);
  }
}

}  // namespace tangram
