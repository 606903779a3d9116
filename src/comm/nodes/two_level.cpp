// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Relay buffers hold the union of what a node needs of one rank, rows ascending. As each hop has one source for a relay
// buffer, pieces of a pair of ranks ascend at both ends, which is what Exchange asks for.
#include "comm/nodes/two_level.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram::comm {

namespace {

using Pieces = std::vector<Range>;  // ascending, apart

/// The rows that a node needs of a source in these stages.
Pieces needed_rows(const NodeLayout& nodes, std::span<const std::vector<Exchange>> stages, int source, int node) {
  Pieces needed, joined;
  for (const std::vector<Exchange>& ranks : stages) {
    for (const RowCopy& copy : ranks[static_cast<size_t>(source)].sends) {
      if (nodes.node_of(copy.peer) == node) needed.push_back(copy.rows);
    }
  }
  std::sort(needed.begin(), needed.end());
  for (const Range& rows : needed) {
    if (!joined.empty() && rows.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, rows.end);
    } else {
      joined.push_back(rows);
    }
  }
  return joined;
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

/// Rows of one source as they lie in a relay buffer, those of all stages.
class RelayRows {
 public:
  RelayRows(const NodeLayout& nodes, std::span<const std::vector<Exchange>> stages, int source, int node)
      : pieces_(needed_rows(nodes, stages, source, node)) {
    for (const Range& rows : pieces_) {
      begins_.push_back(size_);
      size_ += rows.size();
    }
  }

  int64_t size() const { return size_; }
  /// Where `rows` of the source, which are needed, lie in the buffer.
  Range place(const Range& rows) const {
    const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), rows.begin,
                                        [](int64_t row, const Range& piece) { return row < piece.begin; });
    TANGRAM_ASSERT(after != pieces_.begin() && std::prev(after)->contains(rows));
    const auto idx = static_cast<size_t>(std::prev(after) - pieces_.begin());
    return rows.shifted(begins_[idx] - pieces_[idx].begin);
  }

 private:
  Pieces pieces_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
};

/// The steps of a stage's cast as any rank of it sees them.
class Steps {
 public:
  Steps(const NodeLayout& nodes, std::span<const std::vector<Exchange>> stages, size_t stage)
      : nodes_(nodes), stages_(stages), stage_(stage) {}

  Exchange direct(int rank) const {
    const auto in_node = [&](const RowCopy& copy) { return nodes_.node_of(copy.peer) == nodes_.node_of(rank); };
    Exchange exchange;
    std::ranges::copy_if(of(rank).sends, std::back_inserter(exchange.sends), in_node);
    std::ranges::copy_if(of(rank).recvs, std::back_inserter(exchange.recvs), in_node);
    return exchange;
  }

  RelayRows relayed_by(int relay, int distance) const {
    return {nodes_, stages_, nodes_.across(relay, -distance), nodes_.node_of(relay)};
  }

  Exchange between(int rank, int distance) const {
    Exchange exchange;
    const int target = nodes_.across(rank, distance), source = nodes_.across(rank, -distance);
    const RelayRows sent = relayed_by(target, distance), received = relayed_by(rank, distance);
    for (const Range& rows : new_rows(rank, nodes_.node_of(target))) {
      exchange.sends.push_back({target, rows, sent.place(rows).begin});
    }
    for (const Range& rows : new_rows(source, nodes_.node_of(rank))) {
      exchange.recvs.push_back({source, received.place(rows), rows.begin});
    }
    return exchange;
  }

  Exchange forward(int rank, int distance) const {
    const int node = nodes_.node_of(rank);
    Exchange exchange;
    for (int place = 0; place < nodes_.ranks_per_node; ++place) {
      const int relay = nodes_.rank_at(node, place);
      const RelayRows relayed = relayed_by(relay, distance);
      for (const RowCopy& copy : of(nodes_.across(relay, -distance)).sends) {
        if (copy.peer == relay || nodes_.node_of(copy.peer) != node) continue;
        const Range rows = relayed.place(copy.rows);
        if (relay == rank) exchange.sends.push_back({copy.peer, rows, copy.peer_row});
        if (copy.peer == rank) {
          exchange.recvs.push_back({relay, {copy.peer_row, copy.peer_row + rows.size()}, rows.begin});
        }
      }
    }
    return exchange;
  }

  std::vector<RelayedRows> own(int rank, int distance) const {
    const RelayRows relayed = relayed_by(rank, distance);
    std::vector<RelayedRows> own;
    for (const RowCopy& copy : of(nodes_.across(rank, -distance)).sends) {
      if (copy.peer == rank) own.push_back({relayed.place(copy.rows), copy.peer_row});
    }
    return own;
  }

 private:
  const Exchange& of(int rank) const { return stages_[stage_][static_cast<size_t>(rank)]; }
  /// What a node needs of a source in this stage first.
  Pieces new_rows(int source, int node) const {
    return difference(needed_rows(nodes_, stages_.subspan(stage_, 1), source, node),
                      needed_rows(nodes_, stages_.first(stage_), source, node));
  }

  const NodeLayout& nodes_;
  std::span<const std::vector<Exchange>> stages_;
  size_t stage_;
};

/// The reverse of a cast step into staging areas; `table_of` gives the step's tables of any rank.
template <class TableOf>
Exchange staged_return(int rank, const TableOf& table_of) {
  const Exchange own = table_of(rank);
  Exchange exchange;
  for (size_t i = 0; i < own.recvs.size();) {
    const int owner = own.recvs[i].peer;
    int64_t at = 0;
    for (const RowCopy& copy : table_of(owner).sends) at += copy.peer < rank ? copy.rows.size() : 0;
    for (; i < own.recvs.size() && own.recvs[i].peer == owner; ++i) {
      exchange.sends.push_back({owner, own.recvs[i].rows, at});
      at += own.recvs[i].rows.size();
    }
  }
  int64_t at = 0;
  for (const RowCopy& copy : own.sends) {
    exchange.recvs.push_back({copy.peer, {at, at + copy.rows.size()}, copy.peer_row});
    at += copy.rows.size();
  }
  return exchange;
}

}  // namespace

int NodeLayout::across(int rank, int distance) const {
  const int node = (node_of(rank) + distance) % num_nodes();
  return rank_at(node < 0 ? node + num_nodes() : node, place_of(rank));
}

int64_t relay_rows(const NodeLayout& nodes, const StageTables& stages, int relay, int distance) {
  return RelayRows(nodes, stages, nodes.across(relay, -distance), nodes.node_of(relay)).size();
}

std::vector<TwoLevelTables> make_two_level(const NodeLayout& nodes, const StageTables& stages, int rank) {
  TANGRAM_ASSERT(nodes.ranks_per_node >= 1 && nodes.num_ranks % nodes.ranks_per_node == 0);
  std::vector<TwoLevelTables> all;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    TANGRAM_ASSERT(std::ssize(stages[stage]) == nodes.num_ranks);
    const Steps steps(nodes, stages, stage);
    TwoLevelTables& tables = all.emplace_back();
    tables.direct = steps.direct(rank);
    tables.return_direct = staged_return(rank, [&](int r) { return steps.direct(r); });
    for (int distance = 1; distance < nodes.num_nodes(); ++distance) {
      Hop& hop = tables.hops.emplace_back();
      hop.source = nodes.across(rank, -distance);
      hop.target = nodes.across(rank, distance);
      hop.relay_rows = steps.relayed_by(rank, distance).size();
      hop.between = steps.between(rank, distance);
      hop.forward = steps.forward(rank, distance);
      hop.own = steps.own(rank, distance);
      hop.return_forward = staged_return(rank, [&](int r) { return steps.forward(r, distance); });
      hop.return_between = staged_return(rank, [&](int r) { return steps.between(r, distance); });
    }
  }
  return all;
}

TwoLevelTables make_two_level(const NodeLayout& nodes, std::span<const Exchange> ranks, int rank) {
  return std::move(make_two_level(nodes, StageTables{{ranks.begin(), ranks.end()}}, rank)[0]);
}

}  // namespace tangram::comm
