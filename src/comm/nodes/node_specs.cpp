// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/node_specs.hpp"

#include <algorithm>

namespace tangram::comm {

namespace {

/// The between-stages of a pass's casts or returns, as one rank takes part in them.
struct Levels {
  std::vector<Exchange> direct;               // by stage
  std::vector<Exchange> between, forward;     // by between-stage
  std::vector<std::vector<RelayedRows>> own;  // likewise
  int64_t relay_rows = 0;
};

/// `peer` becomes `number(peer)`.
template <class Number>
void renumber(Exchange& exchange, Number number) {
  for (std::vector<RowCopy>* list : {&exchange.sends, &exchange.recvs}) {
    for (RowCopy& copy : *list) copy.peer = number(copy.peer);
  }
}

/// Adds stages that share their ranges of relay buffers, which begin where those of earlier ones end.
/// `relay_ends[rank]` is where that is, on each rank.
void append_stages(const NodeLayout& nodes, int rank, const StageTables& stages, std::vector<int64_t>& relay_ends,
                   Levels& levels) {
  std::vector<std::vector<int64_t>> begins(relay_ends.size());  // by rank and distance - 1
  for (int r = 0; r < nodes.num_ranks; ++r) {
    const auto idx = static_cast<size_t>(r);
    for (int distance = 1; distance < nodes.num_nodes(); ++distance) {
      begins[idx].push_back(relay_ends[idx]);
      relay_ends[idx] += relay_rows(nodes, stages, r, distance);
    }
  }
  const auto caller = [&](int peer) { return nodes.place_of(peer); };
  const auto node = [&](int peer) { return nodes.node_of(peer); };
  for (TwoLevelTables& tables : make_two_level(nodes, stages, rank)) {
    renumber(tables.direct, caller);
    levels.direct.push_back(std::move(tables.direct));
    for (size_t h = 0; h < tables.hops.size(); ++h) {
      Hop& hop = tables.hops[h];
      const auto begin = [&](int relay) { return begins[static_cast<size_t>(relay)][h]; };
      for (RowCopy& copy : hop.between.sends) copy.peer_row += begin(hop.target);
      for (RowCopy& copy : hop.between.recvs) copy.rows = copy.rows.shifted(begin(rank));
      for (RowCopy& copy : hop.forward.sends) copy.rows = copy.rows.shifted(begin(rank));
      for (RowCopy& copy : hop.forward.recvs) copy.peer_row += begin(copy.peer);
      for (RelayedRows& rows : hop.own) rows.relay = rows.relay.shifted(begin(rank));
      renumber(hop.between, node);
      renumber(hop.forward, caller);
      levels.between.push_back(std::move(hop.between));
      levels.forward.push_back(std::move(hop.forward));
      levels.own.push_back(std::move(hop.own));
    }
  }
}

Levels make_levels(const NodeLayout& nodes, int rank, const StageTables& stages, bool share_relays) {
  Levels levels;
  std::vector<int64_t> relay_ends(static_cast<size_t>(nodes.num_ranks), 0);
  if (share_relays) {
    append_stages(nodes, rank, stages, relay_ends, levels);
  } else {
    for (const std::vector<Exchange>& ranks : stages) append_stages(nodes, rank, {ranks}, relay_ends, levels);
  }
  levels.relay_rows = relay_ends[static_cast<size_t>(rank)];
  return levels;
}

/// Whether a rank has several partial rows, of different stages, of one owned row.
bool repeats_rows(const StageTables& stages) {
  const size_t size = stages.empty() ? 0 : stages[0].size();
  for (size_t rank = 0; rank < size; ++rank) {
    std::vector<std::pair<int, Range>> sends;
    for (const std::vector<Exchange>& ranks : stages) {
      for (const RowCopy& copy : ranks[rank].sends) sends.emplace_back(copy.peer, copy.rows);
    }
    std::ranges::sort(sends);
    for (size_t i = 1; i < sends.size(); ++i) {
      if (sends[i].first == sends[i - 1].first && sends[i].second.begin < sends[i - 1].second.end) return true;
    }
  }
  return false;
}

}  // namespace

NodeSpecs make_node_specs(const NodeLayout& nodes, int rank, const DevicePassSpec& spec, const StageTables& casts,
                          const StageTables& reduces) {
  constexpr int kRelaySlots = 2;  // relayed rows are never kept
  NodeSpecs specs;
  specs.num_hops = nodes.num_nodes() - 1;
  Levels cast = make_levels(nodes, rank, casts, true);
  // A relay has one place for its own partial row: the rows of stages that share rows cross for each.
  Levels back = make_levels(nodes, rank, reduces, !repeats_rows(reduces));
  specs.cast_relay_rows = cast.relay_rows;
  specs.return_relay_rows = back.relay_rows;
  specs.own_casts = std::move(cast.own);
  specs.own_returns = std::move(back.own);

  specs.node = spec;
  specs.node.recv_buffers_of = nullptr;
  specs.node.casts = std::move(cast.direct);
  std::ranges::move(cast.forward, std::back_inserter(specs.node.casts));
  specs.node.reduces = std::move(back.direct);

  for (DevicePassSpec* level : {&specs.relay, &specs.across}) {
    level->num_slots = std::min(spec.num_slots, kRelaySlots);
    level->num_return_slots = spec.num_return_slots;
  }
  specs.relay.label = spec.label + " at relays";
  specs.across.label = spec.label + " between nodes";
  specs.across.casts = std::move(cast.between);
  if (!specs.across.casts.empty()) specs.across.recv_buffers = spec.recv_buffers;
  for (RecvTensor& tensor : specs.across.recv_buffers) tensor.rows = specs.cast_relay_rows;
  if (back.between.empty()) return specs;
  specs.relay.reduces = std::move(back.forward);
  specs.across.reduces = std::move(back.between);
  specs.relay.returns = specs.across.returns = spec.returns;
  for (ReturnTensor& tensor : specs.relay.returns) tensor.owned_rows = specs.return_relay_rows;
  for (ReturnTensor& tensor : specs.across.returns) {
    tensor.partial_rows = specs.return_relay_rows;
    tensor.partial_dtype = tensor.reduce_dtype;
  }
  return specs;
}

}  // namespace tangram::comm
