// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NodeSpecs: a device pass between ranks on several nodes, split into passes inside the node and between nodes. Plain
// functions of the tables of all ranks.
#pragma once

#include <vector>

#include "comm/nodes/two_level.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// NOTE [passes of two levels]: ranks are counted by their places in a node and by nodes. Stage s and node distance d
/// make forward stage `s * num_hops + d - 1`.
///   casts    `across` brings rows to a relay buffer (NOTE [relay areas]); `node` casts what stays in the node as stages
///            [0, S), then relayed rows as stages S + forward stage.
///   returns  `relay` reduces the partial rows of a node into a relay buffer at the relay, by forward stage, `across`
///            the sums of relay buffers into the owner's rows, `node` those of the owner's own node.
/// Where all ranks know all tables (DevicePassSpec::agreed), so do those of each of these.
struct NodeSpecs {
  int num_hops = 0;
  DevicePassSpec node;
  DevicePassSpec relay;   // without stages where nothing returns
  DevicePassSpec across;  // without stages on a single node
  int64_t cast_relay_rows = 0;
  int64_t return_relay_rows = 0;
  /// Relayed rows of stage s land where those of stage s - 2 were.
  bool reuses_relay = false;
  /// By stage: rows of the relay buffer that this rank needs or adds to itself; `target` in its receive buffers or
  /// partial rows.
  std::vector<std::vector<RelayedRows>> own_casts;
  std::vector<std::vector<RelayedRows>> own_returns;
};

/// `casts` and `reduces` are those of `spec` for all ranks. `in_order`: relayed rows come by calls of the receiver's
/// own (RecvBufferReuse::kInOrder). `recv_buffers_of` of the result is for the caller to set.
NodeSpecs make_node_specs(const NodeLayout& nodes, int rank, const DevicePassSpec& spec, const StageTables& casts,
                          const StageTables& reduces, bool in_order);

/// What the memory of a relay depends on, in rows.
struct RelayRows {
  int64_t keys = 0;            // of its area for keys
  int64_t gradients = 0;       // of its area for sums of gradients
  int64_t busiest_cast = 0;    // that it sends and receives between nodes in a stage
  int64_t busiest_return = 0;  // the same, backwards
  int64_t partials = 0;        // that come to it from ranks of its node
  int64_t sums = 0;            // that come to it as owner, from other nodes

  friend bool operator==(const RelayRows&, const RelayRows&) = default;
};
RelayRows relay_rows(const NodeSpecs& specs);
/// Rows from the tables of all ranks, of `num_casts` and `num_returns` stages, without specs of the rank: quicker.
RelayRows relay_rows(const NodeLayout& nodes, int rank, TwoLevel& casts, size_t num_casts, TwoLevel& returns,
                     size_t num_returns);

/// Memory of a rank that what it relays takes: rows of keys, with what NCCL packs, and of gradients. Of `spec` tensors
/// and slots count.
int64_t relay_bytes(const DevicePassSpec& spec, const RelayRows& rows);

}  // namespace tangram::comm
