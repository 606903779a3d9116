// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/buffered_tables.hpp"

#include <algorithm>
#include <numeric>

#include "core/range_sets.hpp"
#include "core/require.hpp"
#include "plan/program/key_calls.hpp"
#include "tangram/dkv_scatter_map.hpp"

namespace tangram {

namespace {

/// Segments of one owner that follow each other on both sides, whatever stages bring them.
std::vector<KvSegment> joined_segments(const RankPlan& rank) {
  std::vector<KvSegment> joined;
  for (const KvSegment& segment : rank.segments) {
    if (segment.global.empty()) continue;
    if (!joined.empty()) {
      KvSegment& last = joined.back();
      const int64_t rows = last.global.size();
      if (last.owner == segment.owner && last.row + rows == segment.row && last.owner_row + rows == segment.owner_row) {
        last.global.end = last.global.begin + rows + segment.global.size();
        continue;
      }
    }
    joined.push_back(segment);
  }
  return joined;
}

/// Exchange of all rows that the rank receives and sends. Buffers and shards are in global order, so that pieces
/// between two ranks have one order on both.
Exchange exchange_of_rank(const Plan& plan, int rank) {
  Exchange exchange;
  for (int peer = 0; peer < plan.cp_size(); ++peer) {
    for (const KvSegment& segment : joined_segments(plan.ranks()[static_cast<size_t>(peer)])) {
      const int64_t rows = segment.global.size();
      const Range recv_buffers{segment.row, segment.row + rows}, owned{segment.owner_row, segment.owner_row + rows};
      if (peer == rank && segment.owner != rank)
        exchange.recvs.push_back({segment.owner, recv_buffers, segment.owner_row});
      if (peer != rank && segment.owner == rank) exchange.sends.push_back({peer, owned, segment.row});
    }
  }
  std::stable_sort(exchange.recvs.begin(), exchange.recvs.end(),
                   [](const RowCopy& a, const RowCopy& b) { return a.peer < b.peer; });
  return exchange;
}

/// Begins, by owner, of the gradients of this rank's rows in the returned rows, which are by rank.
std::vector<int64_t> return_begins(const Plan& plan, int rank) {
  std::vector<int64_t> begins(plan.ranks().size());
  for (int before = 0; before < rank; ++before) {
    for (const KvSegment& segment : plan.ranks()[static_cast<size_t>(before)].segments) {
      if (segment.owner != before) begins[static_cast<size_t>(segment.owner)] += segment.global.size();
    }
  }
  return begins;
}

/// Slices of MaskCapacity that a rank's lists take. A slice has a run in every tile that it crosses. Lists have room
/// for two runs a tile and, for each of these slices, those of 128 rows and three more. A key tile has 128 rows.
int64_t slices_for(const RankPlan& rank, int64_t q_rows) {
  constexpr int64_t kRows = 128;
  const auto tiles_of = [](const Range& rows) { return (rows.size() + kRows - 1) / kRows; };
  const int64_t num_slices = std::ssize(rank.slices);
  int64_t queries = -(2 * (q_rows / kRows)), keys = num_slices - 2 * (rank.kv_rows / kRows);
  for (const AttnSlice& slice : rank.slices) {
    queries += tiles_of(slice.q_range);
    keys += tiles_of(slice.k_range);
  }
  return std::max({num_slices, queries, (keys + 3) / 4});
}

bool leaves_queries(const RankPlan& rank, int64_t q_rows) {
  std::vector<Range> seeing;
  for (const AttnSlice& slice : rank.slices) seeing.push_back(canonical(slice).q_range);
  return !ranges_without({{0, q_rows}}, joined_ranges(std::move(seeing))).empty();
}

void set_places(std::span<uint32_t> places, const Range& rows, uint32_t first) {
  TANGRAM_ASSERT(rows.begin >= 0 && rows.end <= std::ssize(places));
  std::iota(places.begin() + rows.begin, places.begin() + rows.end, first);
}

}  // namespace

DistMaskCapacity capacity_for(const Plan& plan) {
  DistMaskCapacity needed{
      .kv_rows = 0, .sent_rows = 0, .local_ranges = 0, .documents = 0, .allow_fully_masked_rows = false};
  std::vector<int64_t> sent(plan.ranks().size()), pieces(plan.ranks().size());
  for (int rank = 0; rank < plan.cp_size(); ++rank) {
    const RankPlan& of = plan.ranks()[static_cast<size_t>(rank)];
    int64_t own_pieces = 0;
    for (const KvSegment& segment : joined_segments(of)) {
      if (segment.owner == rank) {
        own_pieces += 2;  // its borders
        continue;
      }
      sent[static_cast<size_t>(segment.owner)] += segment.global.size();
      pieces[static_cast<size_t>(segment.owner)] += 1;
    }
    needed.kv_rows = std::max(needed.kv_rows, of.kv_rows);
    needed.local_ranges = std::max(needed.local_ranges, own_pieces);
    needed.documents = std::max(needed.documents, std::ssize(of.slices));
    needed.slices = std::max(needed.slices, slices_for(of, plan.q_dispatch.rows_per_rank()));
    needed.allow_fully_masked_rows =
        needed.allow_fully_masked_rows || leaves_queries(of, plan.q_dispatch.rows_per_rank());
  }
  needed.sent_rows = *std::max_element(sent.begin(), sent.end());
  needed.local_ranges = std::max(needed.local_ranges, *std::max_element(pieces.begin(), pieces.end()));
  return needed;
}

RankTables tables_of_rank(const Plan& plan, int rank, int64_t border) {
  const RankPlan& of = plan.ranks()[static_cast<size_t>(rank)];
  const std::vector<LocalKvRange> own = own_local_ranges(of, rank);
  RankTables tables;
  if (border >= 0) tables.elsewhere = worth_reading(own, border);
  BufferedTables& moves = tables.moves;
  moves.own_rows = to_copy(own, tables.elsewhere, std::max<int64_t>(border, 0));
  moves.exchange = exchange_of_rank(plan, rank);
  moves.recv_buffer_rows = of.kv_rows;
  moves.return_begin = return_begins(plan, rank);
  std::vector<Range> sent;
  for (const RowCopy& copy : moves.exchange.sends) sent.push_back(copy.rows);
  const std::vector<Range> seen = rows_of(own);
  moves.left = ranges_without(seen, joined_ranges(std::move(sent)));
  moves.absent = ranges_without({{0, plan.k_dispatch.rows_per_rank()}}, seen);
  return tables;
}

void write_places(const Plan& plan, int rank, const BufferedTables& tables, std::span<uint32_t> places) {
  const int64_t shard_rows = plan.k_dispatch.rows_per_rank();
  for (const LocalKvRange& own : own_local_ranges(plan.ranks()[static_cast<size_t>(rank)], rank)) {
    set_places(places, own.keys, dkv_scatter_target(kOwnTensor, own.row));
    // NOTE [settled rows]
    const Range all{own.row, own.row + own.keys.size()};
    auto final_rows = std::upper_bound(tables.left.begin(), tables.left.end(), all.begin,
                                       [](int64_t row, const Range& range) { return row < range.end; });
    for (; final_rows != tables.left.end() && final_rows->begin < all.end; ++final_rows) {
      const Range rows = intersect(*final_rows, all);
      set_places(places, rows.shifted(own.keys.begin - own.row), dkv_scatter_target(kFinalTensor, rows.begin));
    }
  }
  std::vector<int64_t> next = tables.return_begin;
  for (const RowCopy& copy : tables.exchange.recvs) {
    int64_t& row = next[static_cast<size_t>(copy.peer)];
    set_places(places, copy.rows, dkv_scatter_target(kFirstOtherTensor + static_cast<uint32_t>(copy.peer), row));
    row += copy.rows.size();
  }
  for (int64_t row = tables.recv_buffer_rows; row < std::ssize(places); ++row) {
    places[static_cast<size_t>(row)] = dkv_scatter_target(kOwnTensor, shard_rows + row % kUnusedRows);
  }
}

}  // namespace tangram
