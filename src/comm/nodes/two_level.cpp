// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/two_level.hpp"

#include <algorithm>
#include <span>

#include "core/require.hpp"

namespace tangram::comm {

namespace {

using Pieces = std::vector<Range>;

/// The copies with peers [begin, end); `copies` is sorted by peer.
std::span<const RowCopy> with_peers(const std::vector<RowCopy>& copies, int begin, int end) {
  const auto before = [](const RowCopy& copy, int peer) { return copy.peer < peer; };
  const auto first = std::lower_bound(copies.begin(), copies.end(), begin, before);
  return {first, std::lower_bound(first, copies.end(), end, before)};
}

int64_t rows_of(std::span<const RowCopy> copies) {
  int64_t rows = 0;
  for (const RowCopy& copy : copies) rows += copy.rows.size();
  return rows;
}

/// Sorts and joins.
Pieces joined(Pieces pieces) {
  std::sort(pieces.begin(), pieces.end());
  size_t num_kept = 0;
  for (const Range& rows : pieces) {
    if (num_kept > 0 && rows.begin <= pieces[num_kept - 1].end) {
      pieces[num_kept - 1].end = std::max(pieces[num_kept - 1].end, rows.end);
    } else {
      pieces[num_kept++] = rows;
    }
  }
  pieces.resize(num_kept);
  return pieces;
}

/// `rows` without `taken`.
Pieces difference(const Pieces& rows, const Pieces& taken) {
  Pieces left;
  auto next = taken.begin();
  for (Range piece : rows) {
    while (next != taken.end() && next->end <= piece.begin) ++next;
    for (auto cut = next; cut != taken.end() && cut->begin < piece.end; ++cut) {
      if (piece.begin < cut->begin) left.push_back({piece.begin, cut->begin});
      piece.begin = std::min(piece.end, cut->end);
    }
    if (!piece.empty()) left.push_back(piece);
  }
  return left;
}

}  // namespace

int NodeLayout::across(int rank, int distance) const {
  const int node = (node_of(rank) + distance) % num_nodes();
  return rank_at(node < 0 ? node + num_nodes() : node, place_of(rank));
}

TwoLevel::TwoLevel(const NodeLayout& nodes, const StageTables& stages, RelayUse use)
    : nodes_(nodes), stages_(stages), use_(use) {
  TANGRAM_ASSERT(nodes.ranks_per_node >= 1 && nodes.num_ranks % nodes.ranks_per_node == 0);
  for (const auto& ranks : stages) TANGRAM_ASSERT(std::ssize(ranks) == nodes.num_ranks);
}

const TwoLevel::Needed& TwoLevel::needed(int source, int node) {
  const auto [found, is_new] = needed_.try_emplace({source, node});
  Needed& needed = found->second;
  if (!is_new) return needed;
  const int begin = nodes_.rank_at(node, 0), end = nodes_.rank_at(node + 1, 0);
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    Pieces rows;
    for (const RowCopy& copy : with_peers(of(stage, source).sends, begin, end)) rows.push_back(copy.rows);
    const Pieces& now = needed.stages.emplace_back(joined(std::move(rows)));
    const Pieces& first = needed.first.emplace_back(difference(now, needed.all));
    needed.repeats = needed.repeats || first != now;
    Pieces both = std::move(needed.all);
    both.insert(both.end(), first.begin(), first.end());
    needed.all = joined(std::move(both));
  }
  return needed;
}

const TwoLevel::Area& TwoLevel::area(int relay) {
  const auto [found, is_new] = areas_.try_emplace(relay);
  Area& area = found->second;
  if (!is_new) return area;
  const int node = nodes_.node_of(relay), num_distances = nodes_.num_nodes() - 1;
  std::vector<const Needed*> by_distance;
  area.use = use_ == RelayUse::kTwoStages && stages_.size() <= 2 ? RelayUse::kOnce : use_;
  for (int distance = 1; distance <= num_distances; ++distance) {
    by_distance.push_back(&needed(nodes_.across(relay, -distance), node));
    if (use_ == RelayUse::kTwoStages && by_distance.back()->repeats) area.use = RelayUse::kOnce;
  }
  int64_t row = 0;
  const auto add = [&](const Pieces& pieces) {
    Part& part = area.parts.emplace_back();
    part.pieces = &pieces;
    for (const Range& rows : pieces) {
      part.begins.push_back(row);
      row += rows.size();
    }
  };
  if (area.use == RelayUse::kOnce) {
    for (const Needed* of : by_distance) add(of->all);
    area.rows = row;
    return area;
  }
  int64_t even_rows = 0;  // of the largest even stage, behind which odd ones lie
  for (size_t stage = 0; stage < stages_.size(); stage += 2) {
    int64_t rows = 0;
    for (const Needed* of : by_distance) {
      for (const Range& piece : of->stages[stage]) rows += piece.size();
    }
    even_rows = std::max(even_rows, rows);
  }
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    if (area.use == RelayUse::kTwoStages) row = stage % 2 == 0 ? 0 : even_rows;
    for (const Needed* of : by_distance) add(of->stages[stage]);
    area.rows = std::max(area.rows, row);
  }
  return area;
}

const TwoLevel::Part& TwoLevel::part(int relay, int distance, size_t stage) {
  const Area& of = area(relay);
  const auto first = of.use == RelayUse::kOnce ? 0 : stage * static_cast<size_t>(nodes_.num_nodes() - 1);
  return of.parts[first + static_cast<size_t>(distance - 1)];
}

const TwoLevel::Pieces& TwoLevel::crossing(int source, int relay, size_t stage) {
  const RelayUse use = area(relay).use;
  const Needed& rows = needed(source, nodes_.node_of(relay));
  return (use == RelayUse::kOnce ? rows.first : rows.stages)[stage];
}

Range TwoLevel::place(int relay, int distance, size_t stage, const Range& rows) {
  const Part& in = part(relay, distance, stage);
  const Pieces& pieces = *in.pieces;
  const auto after = std::upper_bound(pieces.begin(), pieces.end(), rows.begin,
                                      [](int64_t row, const Range& piece) { return row < piece.begin; });
  TANGRAM_ASSERT(after != pieces.begin() && std::prev(after)->contains(rows));
  const auto idx = static_cast<size_t>(std::prev(after) - pieces.begin());
  return rows.shifted(in.begins[idx] - pieces[idx].begin);
}

Exchange TwoLevel::between(int rank, size_t stage) {
  Exchange exchange;
  for (int node = 0; node < nodes_.num_nodes(); ++node) {
    if (node == nodes_.node_of(rank)) continue;
    const int peer = nodes_.rank_at(node, nodes_.place_of(rank));
    const int back = (nodes_.node_of(rank) - node + nodes_.num_nodes()) % nodes_.num_nodes();  // from peer to rank
    const int on = nodes_.num_nodes() - back;
    for (const Range& rows : crossing(rank, peer, stage)) {
      exchange.sends.push_back({peer, rows, place(peer, on, stage, rows).begin});
    }
    for (const Range& rows : crossing(peer, rank, stage)) {
      exchange.recvs.push_back({peer, place(rank, back, stage, rows), rows.begin});
    }
  }
  return exchange;
}

Exchange TwoLevel::forward(int rank, int distance, size_t stage) {
  const int first = nodes_.rank_at(nodes_.node_of(rank), 0);
  Exchange exchange;
  const auto& sent = of(stage, nodes_.across(rank, -distance)).sends;
  for (const RowCopy& copy : with_peers(sent, first, first + nodes_.ranks_per_node)) {
    if (copy.peer != rank)
      exchange.sends.push_back({copy.peer, place(rank, distance, stage, copy.rows), copy.peer_row});
  }
  for (int relay = first; relay < first + nodes_.ranks_per_node; ++relay) {
    if (relay == rank) continue;
    const int source = nodes_.across(relay, -distance);
    for (const RowCopy& copy : with_peers(of(stage, rank).recvs, source, source + 1)) {
      const Range rows{copy.peer_row, copy.peer_row + copy.rows.size()};
      exchange.recvs.push_back({relay, copy.rows, place(relay, distance, stage, rows).begin});
    }
  }
  return exchange;
}

std::vector<TwoLevelTables> TwoLevel::tables(int rank) {
  std::vector<TwoLevelTables> all;
  const int first = nodes_.rank_at(nodes_.node_of(rank), 0), end = first + nodes_.ranks_per_node;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    TwoLevelTables& tables = all.emplace_back();
    const Exchange& whole = of(stage, rank);
    const auto sends = with_peers(whole.sends, first, end), recvs = with_peers(whole.recvs, first, end);
    tables.direct = {{sends.begin(), sends.end()}, {recvs.begin(), recvs.end()}};
    tables.between = between(rank, stage);
    for (int distance = 1; distance < nodes_.num_nodes(); ++distance) {
      tables.forward.push_back(forward(rank, distance, stage));
      const int source = nodes_.across(rank, -distance);
      for (const RowCopy& copy : with_peers(whole.recvs, source, source + 1)) {
        const Range rows{copy.peer_row, copy.peer_row + copy.rows.size()};
        tables.own.push_back({place(rank, distance, stage, rows), copy.rows.begin});
      }
    }
  }
  return all;
}

int64_t TwoLevel::direct_rows(int rank, size_t stage, int peer) const {
  return rows_of(with_peers(of(stage, rank).sends, peer, peer + 1));
}

int64_t TwoLevel::forward_rows(int rank, size_t stage, int distance, int peer) const {
  return direct_rows(nodes_.across(rank, -distance), stage, peer);
}

int64_t TwoLevel::between_rows(int rank, size_t stage, int node) {
  int64_t rows = 0;
  for (const Range& piece : crossing(rank, nodes_.rank_at(node, nodes_.place_of(rank)), stage)) rows += piece.size();
  return rows;
}

}  // namespace tangram::comm
