// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/pass_layout.hpp"

#include <algorithm>
#include <limits>

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

/// Calls visit(owned row, source, row of the return area) for all rows that come back, sources ascending.
template <class Visit>
void for_each_returned(Caller caller, const DevicePassSpec& spec, const PassLayout& layout, Visit visit) {
  for (int source = 0; source < caller.size; ++source) {
    for (size_t stage = 0; stage < spec.reduces.size(); ++stage) {
      if (source == caller.rank) continue;
      int64_t row = layout.return_begin[stage * static_cast<size_t>(caller.size) + static_cast<size_t>(source)];
      for (const RowCopy& copy : pieces_of(spec.reduces[stage].sends, source)) {
        for (int64_t owned = copy.rows.begin; owned < copy.rows.end; ++owned) visit(owned, source, row++);
      }
    }
  }
}

MergeTable make_merge_table(Caller caller, const DevicePassSpec& spec, const PassLayout& layout) {
  MergeTable table;
  if (spec.returns.empty()) return table;
  const size_t rows = static_cast<size_t>(spec.returns[0].owned_rows);
  table.begin.assign(rows + 1, 0);
  table.num_before.assign(rows, 0);
  for_each_returned(caller, spec, layout, [&](int64_t owned, int source, int64_t) {
    ++table.begin[static_cast<size_t>(owned) + 1];
    if (source < caller.rank) ++table.num_before[static_cast<size_t>(owned)];
  });
  for (size_t row = 0; row < rows; ++row) table.begin[row + 1] += table.begin[row];
  table.entries.resize(static_cast<size_t>(table.begin.back()));
  std::vector<int32_t> next(table.begin.begin(), table.begin.end() - 1);
  for_each_returned(caller, spec, layout, [&](int64_t owned, int, int64_t row) {
    table.entries[static_cast<size_t>(next[static_cast<size_t>(owned)]++)] = static_cast<int32_t>(row);
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
  for (const KeyStretch& rows : spec.own_rows) {
    layout.own_source_rows = std::max(layout.own_source_rows, rows.row + rows.keys.size());
  }
  require(layout.return_rows <= std::numeric_limits<int32_t>::max(),
          "prepare_pass '{}': at most 2^31 - 1 partial rows may come back to a rank (got {})", spec.label,
          layout.return_rows);
  layout.merge = make_merge_table(caller, spec, layout);
  return layout;
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
