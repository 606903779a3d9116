// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/nodes/node_tables.hpp"

#include <algorithm>

#include "core/require.hpp"
#include "plan/program/emit.hpp"

namespace tangram {

namespace {

class TableWriter {
 public:
  TableWriter(const Plan& plan, AttnPass pass)
      : plan_(plan), pass_(pass), nodes_(node_shape(plan.config)), tables_(plan.ranks().size()) {}

  std::vector<NodeTables> run() {
    const std::vector<Stage>& stages =
        pass_ == AttnPass::kForward ? plan_.ranks().front().forward : plan_.ranks().front().backward;
    const int num_stages = static_cast<int>(stages.size()) - 1;
    staged_ = by_stage(rails_of(plan_), plan_.ranks(), nodes_, pass_, num_stages);
    for (int s = 0; s < num_stages; ++s) add_crossing(s + 1);
    for (int r = 0; r < nodes_.cp_size; ++r) add_needs(r);
    for (NodeTables& tables : tables_) {
      for (NodeExchange* exchange : {&tables.inside, &tables.hops, &tables.between, &tables.forward}) {
        join(exchange->sends);
        join(exchange->recvs);
      }
    }
    hop_once();
    return std::move(tables_);
  }

 private:
  void add(NodeExchange NodeTables::* way, int from, int to, int stage, const Range& rows) {
    (tables_[static_cast<size_t>(from)].*way).sends.push_back({stage, to, rows});
    (tables_[static_cast<size_t>(to)].*way).recvs.push_back({stage, from, rows});
  }

  void add_crossing(int stage) {
    const NodeRows& rows = staged_[static_cast<size_t>(stage) - 1];
    for (int node = 0; node < nodes_.num_nodes(); ++node) {
      for (const NodePiece& piece : rows[static_cast<size_t>(node)]) {
        const int sender = nodes_.rank(nodes_.node_of(piece.owner), piece.rail);
        if (sender != piece.owner) add(&NodeTables::hops, piece.owner, sender, stage, piece.rows);
        add(&NodeTables::between, sender, nodes_.rank(node, piece.rail), stage, piece.rows);
      }
    }
  }

  void add_needs(int rank) {
    for (const KvSegment& segment : plan_.ranks()[static_cast<size_t>(rank)].segments) {
      if (segment.owner == rank) continue;
      const int stage = pass_ == AttnPass::kForward ? segment.stage_fwd : segment.stage_bwd;
      if (nodes_.same_node(segment.owner, rank)) {
        add(&NodeTables::inside, segment.owner, rank, stage, segment.global);
        continue;
      }
      const int node = nodes_.node_of(rank);
      const std::vector<NodePiece>& pieces = staged_[static_cast<size_t>(stage) - 1][static_cast<size_t>(node)];
      auto piece = std::upper_bound(pieces.begin(), pieces.end(), segment.global.begin,
                                    [](int64_t row, const NodePiece& p) { return row < p.rows.end; });
      for (; piece != pieces.end() && piece->rows.begin < segment.global.end; ++piece) {
        const int relay = nodes_.rank(node, piece->rail);
        if (relay != rank) add(&NodeTables::forward, relay, rank, stage, intersect(segment.global, piece->rows));
      }
    }
  }

  static void join(std::vector<NodeCopy>& copies) {
    std::sort(copies.begin(), copies.end());
    size_t num_kept = 0;
    for (const NodeCopy& copy : copies) {
      NodeCopy* last = num_kept > 0 ? &copies[num_kept - 1] : nullptr;
      if (last != nullptr && last->stage == copy.stage && last->peer == copy.peer &&
          copy.rows.begin <= last->rows.end) {
        last->rows.end = std::max(last->rows.end, copy.rows.end);
      } else {
        copies[num_kept++] = copy;
      }
    }
    copies.resize(num_kept);
  }

  // Rows that one rank sends to several nodes, in several stages, are handed to it in the first of them.
  void hop_once() {
    for (NodeTables& tables : tables_) tables.hops.recvs.clear();
    for (size_t r = 0; r < tables_.size(); ++r) {
      std::vector<NodeCopy> kept;
      for (const NodeCopy& copy : tables_[r].hops.sends) {  // stage after stage
        std::vector<Range> rest{copy.rows};
        for (const NodeCopy& before : kept) {
          if (before.peer == copy.peer && before.stage < copy.stage) subtract(before.rows, rest);
        }
        for (const Range& rows : rest) kept.push_back({copy.stage, copy.peer, rows});
      }
      std::sort(kept.begin(), kept.end());
      for (const NodeCopy& copy : kept) {
        tables_[static_cast<size_t>(copy.peer)].hops.recvs.push_back({copy.stage, static_cast<int>(r), copy.rows});
      }
      tables_[r].hops.sends = std::move(kept);
    }
    for (NodeTables& tables : tables_) std::sort(tables.hops.recvs.begin(), tables.hops.recvs.end());
  }

  static void subtract(const Range& taken, std::vector<Range>& rows) {
    std::vector<Range> rest;
    for (const Range& range : rows) {
      const Range before{range.begin, std::min(range.end, taken.begin)},
          after{std::max(range.begin, taken.end), range.end};
      if (!before.empty()) rest.push_back(before);
      if (!after.empty()) rest.push_back(after);
    }
    rows = std::move(rest);
  }

  const Plan& plan_;
  const AttnPass pass_;
  const NodeShape nodes_;
  std::vector<NodeTables> tables_;
  StagedNodeRows staged_;
};

}  // namespace

NodeRows rails_of(const Plan& plan) {
  const NodeShape nodes = node_shape(plan.config);
  NodeRows rows = node_rows(plan.ranks(), nodes);
  even_rails(rows, nodes);
  return rows;
}

std::vector<NodeTables> node_tables(const Plan& plan, AttnPass pass) {
  require(has_nodes(plan.config) && moves_kv_alone(plan),
          "node_tables: plan must move K/V over several nodes (got cost.ranks_per_node={}, cp_size={})",
          plan.config.cost.ranks_per_node, plan.cp_size());
  return TableWriter(plan, pass).run();
}

}  // namespace tangram
