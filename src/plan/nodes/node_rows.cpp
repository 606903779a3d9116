// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/nodes/node_rows.hpp"

#include <algorithm>
#include <numeric>

namespace tangram {

namespace {

// Cuts the keys of a node where their owner changes, without those of its own ranks.
std::vector<NodePiece> pieces_of(const std::vector<Range>& keys, const std::vector<OwnedRun>& k_runs, int node,
                                 const NodeShape& nodes) {
  std::vector<NodePiece> pieces;
  auto run = k_runs.begin();
  for (const Range& range : keys) {
    run = std::upper_bound(run, k_runs.end(), range.begin,
                           [](int64_t key, const OwnedRun& r) { return key < r.global.end; });
    for (auto at = run; at != k_runs.end() && at->global.begin < range.end; ++at) {
      if (nodes.node_of(at->owner) == node) continue;
      pieces.push_back({intersect(range, at->global), at->owner, nodes.rail_of(at->owner)});
    }
  }
  return pieces;
}

std::vector<OwnedRun> runs_of_nodes(const std::vector<OwnedRun>& runs, const NodeShape& nodes) {
  std::vector<OwnedRun> result;
  for (const OwnedRun& run : runs) {
    const int node = nodes.node_of(run.owner);
    if (!result.empty() && result.back().owner == node) {
      result.back().global.end = run.global.end;
    } else {
      result.push_back({run.global, node, 0});
    }
  }
  return result;
}

// A row moves in pieces of at least so many, unless its piece is shorter.
constexpr int64_t kShortestMove = 64;

class Rails {
 public:
  Rails(NodeRows& rows, const NodeShape& nodes) : rows_(rows), nodes_(nodes), traffic_(traffic_of(rows, nodes)) {
    std::vector<int64_t> totals;
    for (const std::vector<int64_t>* loads : {&traffic_.sent, &traffic_.received}) {
      for (int node = 0; node < nodes.num_nodes(); ++node) {
        const auto begin = loads->begin() + nodes.rank(node, 0);
        totals.push_back(std::accumulate(begin, begin + nodes.ranks_per_node, int64_t{0}));
      }
    }
    const int64_t most = *std::max_element(totals.begin(), totals.end());
    limit_ = static_cast<int64_t>(kRailLimit * static_cast<double>(most) / nodes.ranks_per_node) + 1;
  }

  void run() {
    if (traffic_.busiest() <= limit_) return;
    struct Place {
      size_t node;
      size_t piece;
      int64_t size;
    };
    std::vector<Place> places;
    for (size_t n = 0; n < rows_.size(); ++n) {
      for (size_t i = 0; i < rows_[n].size(); ++i) {
        if (excess(static_cast<int>(n), rows_[n][i]) > 0) places.push_back({n, i, rows_[n][i].rows.size()});
      }
    }
    // Long pieces first: fewer are cut.
    std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.size > b.size; });
    std::vector<std::vector<NodePiece>> cut(rows_.size());
    for (const Place& place : places)
      move(static_cast<int>(place.node), rows_[place.node][place.piece], cut[place.node]);
    for (size_t n = 0; n < rows_.size(); ++n) {
      if (cut[n].empty()) continue;
      rows_[n].insert(rows_[n].end(), cut[n].begin(), cut[n].end());
      std::sort(rows_[n].begin(), rows_[n].end(),
                [](const NodePiece& a, const NodePiece& b) { return a.rows.begin < b.rows.begin; });
    }
  }

 private:
  int64_t& sent(const NodePiece& piece, int rail) { return at(traffic_.sent, nodes_.node_of(piece.owner), rail); }
  int64_t& received(int node, int rail) { return at(traffic_.received, node, rail); }
  int64_t& at(std::vector<int64_t>& loads, int node, int rail) {
    return loads[static_cast<size_t>(nodes_.rank(node, rail))];
  }
  // Rows that a piece's rail has too many, at the end where that is more.
  int64_t excess(int node, const NodePiece& piece) {
    return std::max(sent(piece, piece.rail), received(node, piece.rail)) - limit_;
  }

  // Cuts rows off the end of a piece for other rails; what is cut off is appended to `cut`.
  void move(int node, NodePiece& piece, std::vector<NodePiece>& cut) {
    while (true) {
      const int64_t wanted = std::max(excess(node, piece), std::min(kShortestMove, piece.rows.size()));
      if (excess(node, piece) <= 0) return;
      int best = -1;
      int64_t room = 0;
      for (int rail = 0; rail < nodes_.ranks_per_node; ++rail) {
        const int64_t left = limit_ - std::max(sent(piece, rail), received(node, rail));
        if (left <= room || rail == piece.rail) continue;
        best = rail;
        room = left;
      }
      const int64_t num_rows = std::min({wanted, room, piece.rows.size()});
      if (best < 0 || num_rows < std::min(kShortestMove, piece.rows.size())) return;
      sent(piece, piece.rail) -= num_rows;
      received(node, piece.rail) -= num_rows;
      sent(piece, best) += num_rows;
      received(node, best) += num_rows;
      if (num_rows == piece.rows.size()) {
        piece.rail = best;
        return;
      }
      cut.push_back({{piece.rows.end - num_rows, piece.rows.end}, piece.owner, best});
      piece.rows.end -= num_rows;
    }
  }

  NodeRows& rows_;
  const NodeShape& nodes_;
  NodeTraffic traffic_;
  int64_t limit_ = 0;
};

}  // namespace

NodeRows node_rows(const Mask& mask, const std::vector<OwnedRun>& q_runs, const std::vector<OwnedRun>& k_runs,
                   const NodeShape& nodes) {
  const std::vector<OwnedRun> runs = runs_of_nodes(q_runs, nodes);
  std::vector<std::vector<Range>> keys(static_cast<size_t>(nodes.num_nodes()));
  for_each_row_piece(mask, runs, [&](size_t run, const AttnSlice& piece) {
    if (!piece.q_range.empty()) append_range(keys[static_cast<size_t>(runs[run].owner)], piece.k_range);
  });
  NodeRows rows;
  for (size_t n = 0; n < keys.size(); ++n) {
    join_ranges(keys[n]);
    rows.push_back(pieces_of(keys[n], k_runs, static_cast<int>(n), nodes));
  }
  return rows;
}

NodeRows node_rows(const std::vector<std::vector<Range>>& needed, const std::vector<OwnedRun>& k_runs,
                   const NodeShape& nodes) {
  NodeRows rows;
  std::vector<Range> keys;
  for (int node = 0; node < nodes.num_nodes(); ++node) {
    keys.clear();
    for (int rail = 0; rail < nodes.ranks_per_node; ++rail) {
      const std::vector<Range>& of_rank = needed[static_cast<size_t>(nodes.rank(node, rail))];
      keys.insert(keys.end(), of_rank.begin(), of_rank.end());
    }
    join_ranges(keys);
    rows.push_back(pieces_of(keys, k_runs, node, nodes));
  }
  return rows;
}

int64_t NodeTraffic::busiest() const {
  int64_t most = 0;
  for (const std::vector<int64_t>* loads : {&sent, &received}) {
    for (const int64_t load : *loads) most = std::max(most, load);
  }
  return most;
}

int64_t NodeTraffic::total() const { return std::accumulate(sent.begin(), sent.end(), int64_t{0}); }
int64_t NodeTraffic::total_hops() const { return std::accumulate(hops.begin(), hops.end(), int64_t{0}); }

NodeTraffic traffic_of(const NodeRows& rows, const NodeShape& nodes) {
  const auto num_ranks = static_cast<size_t>(nodes.cp_size);
  NodeTraffic traffic{std::vector<int64_t>(num_ranks), std::vector<int64_t>(num_ranks), std::vector<int64_t>(num_ranks),
                      std::vector<int>(num_ranks)};
  std::vector<bool> has_message(num_ranks * static_cast<size_t>(nodes.num_nodes()));  // by relay and node
  for (int node = 0; node < nodes.num_nodes(); ++node) {
    for (const NodePiece& piece : rows[static_cast<size_t>(node)]) {
      const int64_t size = piece.rows.size();
      traffic.sent[static_cast<size_t>(nodes.rank(nodes.node_of(piece.owner), piece.rail))] += size;
      const auto relay = static_cast<size_t>(nodes.rank(node, piece.rail));
      traffic.received[relay] += size;
      const auto message =
          relay * static_cast<size_t>(nodes.num_nodes()) + static_cast<size_t>(nodes.node_of(piece.owner));
      if (!has_message[message]) ++traffic.messages[relay];
      has_message[message] = true;
      if (piece.rail != nodes.rail_of(piece.owner)) traffic.hops[static_cast<size_t>(piece.owner)] += size;
    }
  }
  return traffic;
}

void even_rails(NodeRows& rows, const NodeShape& nodes) {
  if (nodes.ranks_per_node > 1 && nodes.num_nodes() > 1) Rails(rows, nodes).run();
}

}  // namespace tangram
