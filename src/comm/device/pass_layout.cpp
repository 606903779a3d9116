// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/pass_layout.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/require.hpp"

namespace tangram::comm {

namespace {

void append(PeerPieces& to, Piece piece) {
  to.rows += piece.rows;
  if (!to.pieces.empty()) {
    Piece& last = to.pieces.back();
    if (last.from + last.rows == piece.from && last.to + last.rows == piece.to) {
      last.rows += piece.rows;
      return;
    }
  }
  to.pieces.push_back(piece);
}

uint64_t peers_of(const std::vector<std::vector<PeerPieces>>& stages) {
  uint64_t bits = 0;
  for (const auto& stage : stages) {
    for (const PeerPieces& peer : stage) bits |= uint64_t{1} << peer.peer;
  }
  return bits;
}

void lay_out_casts(Caller caller, const DevicePassSpec& spec, PassLayout& layout) {
  for (const Exchange& exchange : spec.casts) {
    auto& targets = layout.casts.emplace_back();
    auto& sources = layout.cast_sources.emplace_back();
    int64_t& source_rows = layout.source_rows.emplace_back(0);
    for (int step = 1; step < caller.size; ++step) {
      PeerPieces pieces{(caller.rank + step) % caller.size, 0, {}};
      for (const RowCopy& copy : pieces_of(exchange.sends, pieces.peer)) {
        append(pieces, {copy.rows.begin, copy.peer_row, copy.rows.size()});
        source_rows = std::max(source_rows, copy.rows.end);
      }
      if (pieces.rows > 0) targets.push_back(std::move(pieces));
      const int source = (caller.rank + caller.size - step) % caller.size;
      if (!pieces_of(exchange.recvs, source).empty()) sources.push_back(source);
    }
  }
}

void lay_out_returns(Caller caller, const DevicePassSpec& spec, PassLayout& layout) {
  for (const Exchange& exchange : spec.reduces) {
    auto& targets = layout.returns.emplace_back();
    auto& sources = layout.return_sources.emplace_back();
    for (int step = 1; step < caller.size; ++step) {
      PeerPieces pieces{(caller.rank + step) % caller.size, 0, {}};
      for (const RowCopy& copy : pieces_of(exchange.recvs, pieces.peer)) {
        append(pieces, {copy.rows.begin, pieces.rows, copy.rows.size()});
      }
      if (pieces.rows > 0) targets.push_back(std::move(pieces));
    }
    for (int source = 0; source < caller.size; ++source) {
      layout.return_begin.push_back(layout.return_rows);
      if (source == caller.rank) continue;
      const auto copies = pieces_of(exchange.sends, source);
      if (!copies.empty()) sources.push_back(source);
      for (const RowCopy& copy : copies) layout.return_rows += copy.rows.size();
    }
  }
}

/// Calls visit(owned rows, source, first row of the return area) for all ranges that come back, sources ascending.
template <class Visit>
void for_each_returned(Caller caller, const DevicePassSpec& spec, const PassLayout& layout, Visit visit) {
  for (int source = 0; source < caller.size; ++source) {
    for (size_t stage = 0; stage < spec.reduces.size(); ++stage) {
      if (source == caller.rank) continue;
      int64_t row = layout.return_begin[stage * static_cast<size_t>(caller.size) + static_cast<size_t>(source)];
      for (const RowCopy& copy : pieces_of(spec.reduces[stage].sends, source)) {
        visit(copy.rows, source, row);
        row += copy.rows.size();
      }
    }
  }
}

int64_t num_owned_rows(const DevicePassSpec& spec) { return spec.returns.empty() ? 0 : spec.returns[0].owned_rows; }

/// Owned rows that a table has, and where it has them.
class TabledRows {
 public:
  TabledRows(const std::string& label, int64_t num_rows, std::span<const Range> left) : label_(label) {
    int64_t row = 0;
    for (const Range& range : left) {
      if (range.empty()) continue;
      require(row <= range.begin && range.begin <= range.end && range.end <= num_rows,
              "leave_rows '{}': must be rows of the sums, ascending and disjoint (got [{}, {}) of {})", label_,
              range.begin, range.end, num_rows);
      add({row, range.begin});
      row = range.end;
    }
    add({row, num_rows});
  }

  int64_t size() const { return size_; }
  const std::vector<Range>& ranges() const { return ranges_; }
  /// Place of `rows`, all of which must be in the set.
  size_t place_of(const Range& rows) const {
    const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), rows.begin,
                                        [](int64_t row, const Range& range) { return row < range.begin; });
    require(after != ranges_.begin() && rows.end <= std::prev(after)->end,
            "leave_rows '{}': nothing may come back for these rows (got rows of [{}, {}))", label_, rows.begin,
            rows.end);
    return static_cast<size_t>(places_[static_cast<size_t>(after - ranges_.begin()) - 1] + rows.begin -
                               std::prev(after)->begin);
  }

 private:
  void add(const Range& rows) {
    if (rows.empty()) return;
    places_.push_back(size_);
    ranges_.push_back(rows);
    size_ += rows.size();
  }

  const std::string& label_;
  std::vector<Range> ranges_;
  std::vector<int64_t> places_;  // of the first row of each
  int64_t size_ = 0;
};

MergeTable make_merge_table(Caller caller, const DevicePassSpec& spec, const PassLayout& layout,
                            const TabledRows& tabled) {
  MergeTable table;
  if (spec.returns.empty()) return table;
  const auto rows = static_cast<size_t>(tabled.size());
  table.begin.assign(rows + 1, 0);
  table.num_before.assign(rows, 0);
  for_each_returned(caller, spec, layout, [&](const Range& owned, int source, int64_t) {
    const size_t place = tabled.place_of(owned), end = place + static_cast<size_t>(owned.size());
    for (size_t i = place; i < end; ++i) ++table.begin[i + 1];
    for (size_t i = place; i < end && source < caller.rank; ++i) ++table.num_before[i];
  });
  for (size_t row = 0; row < rows; ++row) table.begin[row + 1] += table.begin[row];
  table.entries.resize(static_cast<size_t>(table.begin.back()));
  std::vector<int32_t> next(table.begin.begin(), table.begin.end() - 1);
  for_each_returned(caller, spec, layout, [&](const Range& owned, int, int64_t row) {
    const size_t place = tabled.place_of(owned), end = place + static_cast<size_t>(owned.size());
    for (size_t i = place; i < end; ++i) table.entries[static_cast<size_t>(next[i]++)] = static_cast<int32_t>(row++);
  });
  return table;
}

}  // namespace

uint64_t PassLayout::cast_targets() const { return peers_of(casts); }
uint64_t PassLayout::return_targets() const { return peers_of(returns); }

int64_t PassLayout::min_source_rows(int stage) const {
  return stage >= 0 && stage < std::ssize(source_rows) ? source_rows[static_cast<size_t>(stage)] : 0;
}

PassLayout make_pass_layout(Caller caller, const DevicePassSpec& spec) {
  TANGRAM_ASSERT(caller.size <= 64);
  PassLayout layout;
  lay_out_casts(caller, spec, layout);
  lay_out_returns(caller, spec, layout);
  for (const LocalKvRange& rows : spec.own_rows) {
    layout.own_source_rows = std::max(layout.own_source_rows, rows.row + rows.keys.size());
  }
  require(layout.return_rows <= std::numeric_limits<int32_t>::max(),
          "prepare_pass '{}': at most 2^31 - 1 partial rows may come back to a rank (got {})", spec.label,
          layout.return_rows);
  if (spec.leaves_rows) return layout;
  layout.merge = make_merge_table(caller, spec, layout, TabledRows(spec.label, num_owned_rows(spec), {}));
  return layout;
}

MergedRows merge_table_without(Caller caller, const DevicePassSpec& spec, const PassLayout& layout,
                               std::span<const Range> left, std::span<const Range> absent) {
  const TabledRows tabled(spec.label, num_owned_rows(spec), left);
  for (const Range& range : absent) {
    require(range.begin >= 0 && range.end <= num_owned_rows(spec),
            "leave_rows '{}': must be rows of the sums (got [{}, {}) of {})", spec.label, range.begin, range.end,
            num_owned_rows(spec));
  }
  MergedRows merged;
  merged.table = make_merge_table(caller, spec, layout, tabled);
  merged.rows.reserve(static_cast<size_t>(tabled.size()));
  auto missing = absent.begin();
  for (const Range& range : tabled.ranges()) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      while (missing != absent.end() && missing->end <= row) ++missing;
      if (missing != absent.end() && missing->begin <= row) {
        int32_t& num_before = merged.table.num_before[merged.rows.size()];
        num_before = ~num_before;
      }
      merged.rows.push_back(static_cast<int32_t>(row));
    }
  }
  return merged;
}

void place_returns(PassLayout& layout, Caller caller, const std::vector<std::vector<int64_t>>& return_begins) {
  for (size_t stage = 0; stage < layout.returns.size(); ++stage) {
    for (PeerPieces& owner : layout.returns[stage]) {
      const int64_t begin = return_begins[static_cast<size_t>(owner.peer)]
                                         [stage * static_cast<size_t>(caller.size) + static_cast<size_t>(caller.rank)];
      for (Piece& piece : owner.pieces) piece.to += begin;
    }
  }
}

}  // namespace tangram::comm
