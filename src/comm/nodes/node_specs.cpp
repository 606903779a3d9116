// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/node_specs.hpp"

#include <algorithm>
#include <memory>
#include <numeric>

#include "comm/device/pass_tensors.hpp"

namespace tangram::comm {

namespace {

constexpr int kRelaySlots = 2;  // relayed rows are never kept

/// A pass's casts or returns, as one rank takes part in them.
struct Levels {
  std::vector<Exchange> direct, between;      // by stage
  std::vector<Exchange> forward;              // by forward stage
  std::vector<std::vector<RelayedRows>> own;  // by stage
};

/// `peer` becomes `number(peer)`.
template <class Number>
void renumber(Exchange& exchange, Number number) {
  for (std::vector<RowCopy>* list : {&exchange.sends, &exchange.recvs}) {
    for (RowCopy& copy : *list) copy.peer = number(copy.peer);
  }
}

Levels make_levels(const NodeLayout& nodes, int rank, TwoLevel& two_level) {
  const auto caller = [&](int peer) { return nodes.place_of(peer); };
  Levels levels;
  for (TwoLevelTables& tables : two_level.tables(rank)) {
    renumber(tables.direct, caller);
    renumber(tables.between, [&](int peer) { return nodes.node_of(peer); });
    levels.direct.push_back(std::move(tables.direct));
    levels.between.push_back(std::move(tables.between));
    for (Exchange& forward : tables.forward) {
      renumber(forward, caller);
      levels.forward.push_back(std::move(forward));
    }
    levels.own.push_back(std::move(tables.own));
  }
  return levels;
}

/// Whether a rank has several partial rows, of different stages, of one owned row.
bool repeats_rows(const StageTables& stages) {
  const size_t size = stages.empty() ? 0 : stages[0].size();
  for (size_t rank = 0; rank < size; ++rank) {
    std::vector<std::pair<int, Range>> sends;
    for (const std::vector<const Exchange*>& ranks : stages) {
      for (const RowCopy& copy : ranks[rank]->sends) sends.emplace_back(copy.peer, copy.rows);
    }
    std::ranges::sort(sends);
    for (size_t i = 1; i < sends.size(); ++i) {
      if (sends[i].first == sends[i - 1].first && sends[i].second.begin < sends[i - 1].second.end) return true;
    }
  }
  return false;
}

/// What ranks of a level know of each other's returns: `rows(caller, stage, source)` come back to a caller.
template <class Rows>
void append_returns(AgreedRows& agreed, int size, size_t num_stages, const Rows& rows) {
  for (int caller = 0; caller < size; ++caller) {
    std::vector<int64_t>& begins = agreed.return_begin.emplace_back();
    int64_t row = 0;
    for (size_t stage = 0; stage < num_stages; ++stage) {
      for (int source = 0; source < size; ++source) {
        begins.push_back(row);
        if (source != caller) row += rows(caller, stage, source);
      }
    }
    agreed.return_rows.push_back(row);
  }
}

void agree_on_levels(const NodeLayout& nodes, int rank, const AgreedRows& all, TwoLevel& cast, TwoLevel& back,
                     NodeSpecs& specs) {
  const int num_callers = nodes.ranks_per_node, num_nodes = nodes.num_nodes();
  const auto rank_in_node = [&](int caller) { return nodes.rank_at(nodes.node_of(rank), caller); };
  const auto rank_in_rail = [&](int node) { return nodes.rank_at(node, nodes.place_of(rank)); };
  auto node = std::make_shared<AgreedRows>(), relay = std::make_shared<AgreedRows>(),
       across = std::make_shared<AgreedRows>();
  relay->recv_buffers.resize(static_cast<size_t>(num_callers));
  for (int caller = 0; caller < num_callers; ++caller) {
    node->recv_buffers.push_back(all.recv_buffers[static_cast<size_t>(rank_in_node(caller))]);
  }
  for (int n = 0; n < num_nodes; ++n) {
    across->recv_buffers.push_back(specs.across.recv_buffers.empty() ? 0 : cast.relay_rows(rank_in_rail(n)));
  }
  append_returns(*node, num_callers, specs.node.reduces.size(), [&](int caller, size_t stage, int source) {
    return back.direct_rows(rank_in_node(caller), stage, rank_in_node(source));
  });
  append_returns(*relay, num_callers, specs.relay.reduces.size(), [&](int caller, size_t forward, int source) {
    const auto num_hops = static_cast<size_t>(specs.num_hops);
    const int distance = 1 + static_cast<int>(forward % num_hops);
    return back.forward_rows(rank_in_node(caller), forward / num_hops, distance, rank_in_node(source));
  });
  append_returns(*across, num_nodes, specs.across.reduces.size(), [&](int owner, size_t stage, int source) {
    return back.between_rows(rank_in_rail(owner), stage, source);
  });
  specs.node.agreed = std::move(node);
  specs.relay.agreed = std::move(relay);
  specs.across.agreed = std::move(across);
}

}  // namespace

NodeSpecs make_node_specs(const NodeLayout& nodes, int rank, const DevicePassSpec& spec, const StageTables& casts,
                          const StageTables& reduces, bool in_order) {
  NodeSpecs specs;
  specs.num_hops = nodes.num_nodes() - 1;
  TwoLevel cast(nodes, casts, in_order ? RelayUse::kTwoStages : RelayUse::kOnce);
  // A relay has one place for its own partial row: the rows of stages that share rows cross for each. Plans whose
  // tables are agreed move K/V alone, of which a rank needs each row in one stage.
  const bool repeats = spec.agreed == nullptr && repeats_rows(reduces);
  TwoLevel back(nodes, reduces, repeats ? RelayUse::kEachStage : RelayUse::kOnce);
  Levels casts_of_rank = make_levels(nodes, rank, cast), returns_of_rank = make_levels(nodes, rank, back);
  const bool has_nodes = specs.num_hops > 0;
  specs.cast_relay_rows = cast.relay_rows(rank);
  specs.return_relay_rows = back.relay_rows(rank);
  specs.reuses_relay = cast.reuses(rank);
  specs.own_casts = std::move(casts_of_rank.own);
  specs.own_returns = std::move(returns_of_rank.own);

  specs.node = spec;
  specs.node.recv_buffers_of = nullptr;
  specs.node.casts = std::move(casts_of_rank.direct);
  std::ranges::move(casts_of_rank.forward, std::back_inserter(specs.node.casts));
  specs.node.reduces = std::move(returns_of_rank.direct);
  specs.node.reuses_sources = specs.reuses_relay;

  for (DevicePassSpec* level : {&specs.relay, &specs.across}) {
    level->num_slots = std::min(spec.num_slots, kRelaySlots);
    level->num_return_slots = spec.num_return_slots;
    level->shares_memory = spec.shares_memory;
  }
  specs.relay.label = spec.label + " at relays";
  specs.relay.opens_beside = true;
  specs.across.label = spec.label + " between nodes";
  if (has_nodes) specs.across.casts = std::move(casts_of_rank.between);
  if (!specs.across.casts.empty()) specs.across.recv_buffers = spec.recv_buffers;
  for (RecvTensor& tensor : specs.across.recv_buffers) tensor.rows = specs.cast_relay_rows;
  if (has_nodes && !returns_of_rank.between.empty()) {
    specs.relay.leaves_rows = true;  // it adds nothing to rows that others alone need
    specs.relay.reduces = std::move(returns_of_rank.forward);
    specs.across.reduces = std::move(returns_of_rank.between);
    specs.relay.returns = specs.across.returns = spec.returns;
    for (ReturnTensor& tensor : specs.relay.returns) tensor.owned_rows = specs.return_relay_rows;
    for (ReturnTensor& tensor : specs.across.returns) {
      tensor.partial_rows = specs.return_relay_rows;
      tensor.partial_dtype = tensor.reduce_dtype;
    }
  }
  if (spec.agreed != nullptr) agree_on_levels(nodes, rank, *spec.agreed, cast, back, specs);
  return specs;
}

RelayRows relay_rows(const NodeSpecs& specs) {
  if (specs.num_hops == 0) return {};
  const auto busiest = [](const std::vector<Exchange>& stages) {
    int64_t rows = 0;
    for (const Exchange& exchange : stages) rows = std::max(rows, exchange.rows_sent() + exchange.rows_received());
    return rows;
  };
  RelayRows rows{.keys = specs.cast_relay_rows,
                 .gradients = specs.return_relay_rows,
                 .busiest_cast = busiest(specs.across.casts),
                 .busiest_return = busiest(specs.across.reduces)};
  for (const Exchange& exchange : specs.relay.reduces) rows.partials += exchange.rows_sent();
  for (const Exchange& exchange : specs.across.reduces) rows.sums += exchange.rows_sent();
  return rows;
}

RelayRows relay_rows(const NodeLayout& nodes, int rank, TwoLevel& casts, size_t num_casts, TwoLevel& returns,
                     size_t num_returns) {
  const int node = nodes.node_of(rank);
  const auto sent = [&](TwoLevel& tables, size_t stage) {
    int64_t rows = 0;
    for (int other = 0; other < nodes.num_nodes(); ++other) {
      if (other != node) rows += tables.between_rows(rank, stage, other);
    }
    return rows;
  };
  const auto received = [&](TwoLevel& tables, size_t stage) {
    int64_t rows = 0;
    for (int other = 0; other < nodes.num_nodes(); ++other) {
      if (other != node) rows += tables.between_rows(nodes.rank_at(other, nodes.place_of(rank)), stage, node);
    }
    return rows;
  };
  RelayRows rows{.keys = casts.relay_rows(rank), .gradients = returns.relay_rows(rank)};
  for (size_t stage = 0; stage < num_casts; ++stage) {
    rows.busiest_cast = std::max(rows.busiest_cast, sent(casts, stage) + received(casts, stage));
  }
  for (size_t stage = 0; stage < num_returns; ++stage) {
    const int64_t of_owner = sent(returns, stage);
    rows.sums += of_owner;
    rows.busiest_return = std::max(rows.busiest_return, of_owner + received(returns, stage));
    for (int distance = 1; distance < nodes.num_nodes(); ++distance) {
      for (int place = 0; place < nodes.ranks_per_node; ++place) {
        const int peer = nodes.rank_at(node, place);
        if (peer != rank) rows.partials += returns.forward_rows(rank, stage, distance, peer);
      }
    }
  }
  return rows;
}

int64_t relay_bytes(const DevicePassSpec& spec, const RelayRows& rows) {
  const std::vector<int64_t> of_row = recv_row_bytes(spec);
  const int64_t slots = spec.shares_memory ? 1 : std::min(spec.num_slots, kRelaySlots);
  int64_t bytes = (slots * rows.keys + rows.busiest_cast) * std::accumulate(of_row.begin(), of_row.end(), int64_t{0});
  for (const ReturnTensor& tensor : spec.returns) {
    const int64_t elements = int64_t{tensor.heads} * tensor.dim;
    const auto partial = static_cast<int64_t>(size_of(tensor.partial_dtype)),
               moved = static_cast<int64_t>(size_of(tensor.reduce_dtype)), summed = int64_t{sizeof(float)};
    if (rows == RelayRows{}) continue;
    bytes += elements * (rows.gradients * (partial + moved) + tensor.owned_rows * summed +
                         (spec.num_return_slots * rows.partials + rows.sums + rows.busiest_return) * moved);
  }
  return bytes;
}

}  // namespace tangram::comm
