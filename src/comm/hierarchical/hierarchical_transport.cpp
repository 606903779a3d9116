// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/hierarchical/hierarchical_transport.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/all_gather.hpp"
#include "comm/hierarchical/all_tables.hpp"
#include "comm/hierarchical/node_sums.hpp"
#include "comm/row_moves.hpp"
#include "comm/wire.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

constexpr char kMeeting[] = "signatures";
constexpr char kMeetingName[] = "all_to_all_v 'signatures'";
constexpr char kFailureLabel[] = "a level failed";
constexpr size_t kMaxKnownTables = 64;  // passes and stages of a few layers of masks

/// A level failed in the operation's steps.
struct LevelError {
  std::string text;
  bool is_timeout = false;
};

/// Calls the operation by its own name where `text` begins with that of a step.
std::string renamed(const std::string& text, const std::string& step, const std::string& name) {
  return text.starts_with(step) ? name + text.substr(step.size()) : text;
}

Exchange with_peers(const Exchange& exchange, const std::vector<int>& ranks) {
  Exchange mapped = exchange;
  for (std::vector<RowCopy>* list : {&mapped.sends, &mapped.recvs}) {
    for (RowCopy& copy : *list) {
      copy.peer = static_cast<int>(std::ranges::lower_bound(ranks, copy.peer) - ranks.begin());
    }
  }
  return mapped;
}

/// By all ranks alike: which tables the operation has, as far as signatures tell.
uint64_t tables_key(const std::vector<Signature>& signatures) {
  uint64_t key = static_cast<uint64_t>(signatures[0].kind);
  const auto mix = [&key](uint64_t value) {
    key = (key ^ (value + 0x9e3779b97f4a7c15 + (key << 6) + (key >> 2))) * 0x100000001b3;
  };
  for (const Signature& signature : signatures) {
    for (const PeerRows& rows : signature.out) {
      mix(static_cast<uint64_t>(rows.rows));
      mix(rows.hash);
    }
  }
  return key;
}

/// Fills in what all_to_all_v leaves to the receivers: rows of a rank lie in the order of their senders. Rows of a rank
/// for itself are dropped.
void place_all_to_all(std::vector<std::vector<RowCopy>>& sends) {
  std::vector<int64_t> next(sends.size(), 0);
  for (size_t rank = 0; rank < sends.size(); ++rank) {
    for (RowCopy& copy : sends[rank]) {
      copy.peer_row = next[static_cast<size_t>(copy.peer)];
      next[static_cast<size_t>(copy.peer)] += copy.rows.size();
    }
    std::erase_if(sends[rank], [&](const RowCopy& copy) { return copy.peer == static_cast<int>(rank); });
  }
}

TrafficCounters sum(TrafficCounters a, const TrafficCounters& b) {
  a.rows_sent += b.rows_sent;
  a.rows_received += b.rows_received;
  a.bytes_sent += b.bytes_sent;
  a.bytes_received += b.bytes_received;
  a.operations += b.operations;
  return a;
}

std::vector<ConstTensorView> readable(const Tensors& tensors) { return {tensors.begin(), tensors.end()}; }
std::vector<TensorView> writable(Tensors& tensors) { return {tensors.begin(), tensors.end()}; }

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  return ranks;
}

}  // namespace

HierarchicalTransport::HierarchicalTransport(Communicator& world, const HierarchicalConfig& config)
    : world_(world),
      nodes_{world.size(), config.ranks_per_node},
      node_{&world, all_ranks(world.size()), {}},
      across_{&world, all_ranks(world.size()), {}},
      has_levels_(config.node != nullptr || config.across != nullptr) {
  const int rank = world.rank();
  if (config.node != nullptr) {
    node_ = {config.node, {}, {}};
    for (int place = 0; place < nodes_.ranks_per_node; ++place) {
      node_.ranks.push_back(nodes_.rank_at(nodes_.node_of(rank), place));
    }
  }
  if (config.across != nullptr) {
    across_ = {config.across, {}, {}};
    for (int node = 0; node < nodes_.num_nodes(); ++node) {
      across_.ranks.push_back(nodes_.rank_at(node, nodes_.place_of(rank)));
    }
  }
}

void HierarchicalTransport::execute(Operation& operation, double& started_s) {
  meet(operation);
  started_s = steady_seconds();
  try {
    move(operation);
  } catch (const Timeout& error) {
    fail(operation, error.what(), true);
  } catch (const CommError& error) {
    fail(operation, error.what(), false);
  } catch (const InvalidArgument& error) {
    throw InternalError(fmt::format("{}: the steps of all ranks must fit ({})", operation.name(), error.what()));
  }
}

void HierarchicalTransport::meet(const Operation& operation) {
  try {
    signatures_ = exchange_signatures(operation.signature);
  } catch (const Timeout& error) {
    throw Timeout(renamed(error.what(), kMeetingName, operation.name()));
  } catch (const CommError& error) {
    throw CommError(renamed(error.what(), kMeetingName, operation.name()));
  }
  std::vector<const Signature*> pointers;
  for (const Signature& signature : signatures_) {
    if (signature.kind == OpKind::kRefusal && signature.label == kFailureLabel) throw CommError(signature.text);
    pointers.push_back(&signature);
  }
  const std::string disagreement = find_disagreement(pointers);
  require(disagreement.empty(), "{}", disagreement);
}

std::vector<Signature> HierarchicalTransport::exchange_signatures(const Signature& own) {
  const size_t num_bytes = encoded_size(nodes_.num_ranks);
  const std::vector<char> sent = encode(own, nodes_.num_ranks);
  const std::vector<char> all = all_gather_bytes(world_, sent.data(), num_bytes, kMeeting);
  std::vector<Signature> signatures;
  for (size_t rank = 0; rank < static_cast<size_t>(nodes_.num_ranks); ++rank) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(rank * num_bytes);
    signatures.push_back(decode({begin, begin + static_cast<ptrdiff_t>(num_bytes)}, nodes_.num_ranks));
  }
  return signatures;
}

void HierarchicalTransport::move(Operation& operation) {
  switch (operation.kind()) {
    case OpKind::kBarrier:
    case OpKind::kAgreement:
    case OpKind::kRefusal: return;
    case OpKind::kAllReduce: all_reduce(operation); return;
    case OpKind::kGroupCast:
    case OpKind::kAllToAllV: cast(operation, *tables_for(operation)); return;
    case OpKind::kGroupReduce:
    case OpKind::kGroupReduceLse: reduce(operation, *tables_for(operation)); return;
  }
}

void HierarchicalTransport::fail(const Operation& operation, const std::string& text, bool is_timeout) {
  std::string reason = renamed(text, step_name_, operation.name());
  if (!has_levels_) {
    if (is_timeout) throw Timeout(reason);
    throw CommError(reason);
  }
  // Peers in either level must not wait for this rank; see NOTE [who is missing].
  for (const Level* level : {&node_, &across_}) {
    if (level->comm != &world_) level->comm->abort(reason);
  }
  Signature failure;
  failure.kind = OpKind::kRefusal;
  failure.label = kFailureLabel;
  failure.text = reason =
      fmt::format("{} (ranks counted inside a node or by node; noticed by rank {})", reason, world_.rank());
  try {
    exchange_signatures(failure);
  } catch (const Timeout& error) {
    throw Timeout(fmt::format("{}; first: {}", renamed(error.what(), kMeetingName, operation.name()), reason));
  } catch (const Error& error) {
    throw CommError(fmt::format("{}; first: {}", renamed(error.what(), kMeetingName, operation.name()), reason));
  }
  if (is_timeout) throw Timeout(reason);
  throw CommError(reason);
}

void HierarchicalTransport::abort(std::string_view reason) noexcept {
  world_.abort(reason);
  for (const Level* level : {&node_, &across_}) {
    if (level->comm != &world_) level->comm->abort(reason);
  }
}

std::vector<Exchange> HierarchicalTransport::gather_tables(const Operation& operation) {
  const bool is_cast = operation.kind() == OpKind::kGroupCast || operation.kind() == OpKind::kAllToAllV;
  std::vector<RowCopy> own = is_cast ? operation.outgoing : operation.incoming;
  step_name_ = "all_to_all_v 'tables'";
  std::vector<std::vector<RowCopy>> sends = gather_sends(world_, std::move(own));
  if (operation.kind() == OpKind::kAllToAllV) place_all_to_all(sends);
  return exchanges_of(std::move(sends));
}

HierarchicalTransport::Tables HierarchicalTransport::tables_for(const Operation& operation) {
  const uint64_t key = tables_key(signatures_);
  for (const auto& [known, tables] : known_tables_) {
    if (known == key) return tables;
  }
  const std::vector<Exchange> ranks = gather_tables(operation);
  auto tables = std::make_shared<const TwoLevelTables>(make_two_level(nodes_, ranks, world_.rank()));
  known_tables_.emplace_back(key, tables);
  if (known_tables_.size() > kMaxKnownTables) known_tables_.pop_front();
  return tables;
}

HierarchicalTransport::Step HierarchicalTransport::start(Level& level, const Exchange& exchange,
                                                         const std::vector<ConstTensorView>& sources,
                                                         const std::vector<TensorView>& targets, const char* label) {
  std::vector<CastTensor> tensors;
  TrafficCounters moved;
  moved.operations = 1;
  for (size_t t = 0; t < sources.size(); ++t) {
    tensors.push_back({sources[t], targets[t]});
    moved.rows_sent += exchange.rows_sent();
    moved.rows_received += exchange.rows_received();
    moved.bytes_sent += exchange.rows_sent() * sources[t].row_bytes();
    moved.bytes_received += exchange.rows_received() * sources[t].row_bytes();
  }
  step_name_ = fmt::format("group_cast '{}'", label);
  Step step{level.comm->group_cast(with_peers(exchange, level.ranks), tensors, label), step_name_};
  const std::lock_guard lock(mutex_);
  level.counters = sum(level.counters, moved);
  return step;
}

void HierarchicalTransport::wait(const Step& step) {
  step_name_ = step.name;
  step.handle->wait();
}

void HierarchicalTransport::cast(const Operation& operation, const TwoLevelTables& tables) {
  const auto& own_out = pieces_of(operation.outgoing, world_.rank());  // of all_to_all_v
  const auto& own_in = pieces_of(operation.incoming, world_.rank());
  for (size_t t = 0; t < operation.targets.size() && !own_out.empty(); ++t) {
    copy_rows(slice_rows(operation.sources[t], own_out[0].rows), slice_rows(operation.targets[t], own_in[0].rows));
  }
  std::vector<Tensors> relays;
  for (const Hop& hop : tables.hops) relays.push_back(tensors_like(operation.targets, hop.relay_rows));
  std::vector<Step> steps, between;  // after what they use: an abandoned step is waited for
  steps.push_back(start(node_, tables.direct, operation.sources, operation.targets, "in the node"));
  for (size_t h = 0; h < relays.size(); ++h) {
    between.push_back(start(across_, tables.hops[h].between, operation.sources, writable(relays[h]), "to relays"));
  }
  for (size_t h = 0; h < relays.size(); ++h) {
    wait(between[h]);
    steps.push_back(start(node_, tables.hops[h].forward, readable(relays[h]), operation.targets, "from relays"));
    for (const RelayedRows& rows : tables.hops[h].own) {
      for (size_t t = 0; t < relays[h].size(); ++t) {
        copy_rows(slice_rows(ConstTensorView(relays[h][t]), rows.relay),
                  slice_rows(operation.targets[t], {rows.target, rows.target + rows.relay.size()}));
      }
    }
  }
  for (const Step& step : steps) wait(step);
}

void HierarchicalTransport::reduce(const Operation& operation, const TwoLevelTables& tables) {
  const size_t num_hops = tables.hops.size();
  const auto staging = [&](const Exchange& exchange) {
    return tensors_like(operation.targets, exchange.rows_received());
  };
  Tensors from_node = staging(tables.return_direct);
  std::vector<Tensors> at_relay, sums(num_hops), from_nodes;
  for (const Hop& hop : tables.hops) {
    at_relay.push_back(staging(hop.return_forward));
    from_nodes.push_back(staging(hop.return_between));
  }
  std::vector<Step> to_relays, to_owners;
  for (size_t h = 0; h < num_hops; ++h) {
    to_relays.push_back(
        start(node_, tables.hops[h].return_forward, operation.sources, writable(at_relay[h]), "to relays"));
  }
  to_owners.push_back(start(node_, tables.return_direct, operation.sources, writable(from_node), "in the node"));
  for (size_t h = 0; h < num_hops; ++h) {
    const Hop& hop = tables.hops[h];
    wait(to_relays[h]);
    sums[h] = sum_of_node(operation, caller(), hop, at_relay[h]);
    to_owners.push_back(start(across_, hop.return_between, readable(sums[h]), writable(from_nodes[h]), "to owners"));
  }
  for (const Step& step : to_owners) wait(step);
  sum_of_all(operation, caller(), nodes_, tables, from_node, from_nodes);
}

void HierarchicalTransport::all_reduce(Operation& operation) {
  const TensorView& target = operation.targets[0];
  const std::span<float> values(static_cast<float*>(target.data), static_cast<size_t>(target.dim));
  const ReduceOp op = operation.signature.op;
  constexpr char kLabel[] = "values";
  step_name_ = fmt::format("all_reduce '{}'", kLabel);
  if (!has_levels_) {
    world_.all_reduce(values, op, kLabel);
    return;
  }
  // Averages are sums of all, divided once. Levels that are the world count each rank as often as it has levels.
  const ReduceOp level_op = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  const auto sum_over = [&](Level& level) {
    if (level.comm != &world_) level.comm->all_reduce(values, level_op, kLabel);
  };
  if (node_.comm == &world_ || across_.comm == &world_) {
    world_.all_reduce(values, level_op, kLabel);
  } else {
    sum_over(node_);
    sum_over(across_);
  }
  if (op != ReduceOp::kAvg) return;
  for (float& value : values) value *= 1.0f / static_cast<float>(nodes_.num_ranks);
}

TrafficCounters HierarchicalTransport::within_node() const {
  const std::lock_guard lock(mutex_);
  return node_.counters;
}

TrafficCounters HierarchicalTransport::across_nodes() const {
  const std::lock_guard lock(mutex_);
  return across_.counters;
}

}  // namespace tangram::comm
