// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// TwoLevel: the tables of a pass between ranks on several nodes, split so that each row crosses to a node once. Plain
// functions of the tables of all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tangram/exchange.hpp"

namespace tangram::comm {

/// Which ranks share a node: [n * ranks_per_node, (n + 1) * ranks_per_node) are on node n.
struct NodeLayout {
  int num_ranks = 1;
  int ranks_per_node = 1;

  int num_nodes() const { return num_ranks / ranks_per_node; }
  int node_of(int rank) const { return rank / ranks_per_node; }
  int place_of(int rank) const { return rank % ranks_per_node; }
  int rank_at(int node, int caller) const { return node * ranks_per_node + caller; }
  /// The rank in the same place, `distance` nodes further on (negative: back), cyclically.
  int across(int rank, int distance) const;
};

/// The tables of all ranks, by stage, then by rank.
using StageTables = std::vector<std::vector<const Exchange*>>;

/// Rows of a relay area that the relaying rank needs itself, and where they belong in its own buffer.
struct RelayedRows {
  Range relay;
  int64_t target = 0;

  friend bool operator==(const RelayedRows&, const RelayedRows&) = default;
};

/// What a rank does in one stage. Ranks are those of the group.
struct TwoLevelTables {
  Exchange direct;                // cast: rows of the shard -> rows of the buffers of the own node
  Exchange between;               // cast: rows of the shard -> the relay areas of other nodes, in the own place there
  std::vector<Exchange> forward;  // by distance - 1, cast: relay areas -> rows of the buffers in the node
  std::vector<RelayedRows> own;

  friend bool operator==(const TwoLevelTables&, const TwoLevelTables&) = default;
};

/// NOTE [relay areas] A relay has, for the source at each node distance, a part of its area with the rows that the node
/// needs of it, ascending: as a part has one source, pieces of a pair of ranks ascend at both ends, which is what
/// Exchange asks for.
///   kOnce       all stages share the parts: a row that a node needs in several crosses in the first of them, so that
///               stages must run in this order. Sums of such rows come from all stages.
///   kEachStage  each stage has parts of its own, behind those of earlier ones, and rows cross in each that needs them.
///   kTwoStages  the same, but stage s lies where stage s - 2 lay: that one must have been handed on before. Of relays
///               whose node needs no row in two stages; the others do as kOnce.
enum class RelayUse { kOnce, kEachStage, kTwoStages };

class TwoLevel {
 public:
  /// `stages` must outlive it.
  TwoLevel(const NodeLayout& nodes, const StageTables& stages, RelayUse use);

  /// The tables of one rank. O(rows' pieces of its rail and of its node).
  std::vector<TwoLevelTables> tables(int rank);
  /// Rows of a rank's relay area.
  int64_t relay_rows(int relay) { return area(relay).rows; }
  /// Whether stage s of this relay's area lies where stage s - 2 lay.
  bool reuses(int relay) { return area(relay).use == RelayUse::kTwoStages; }

  /// Rows that `rank` sends in a stage, without their tables: in its node, as relay at a distance, to another node.
  int64_t direct_rows(int rank, size_t stage, int peer) const;
  int64_t forward_rows(int rank, size_t stage, int distance, int peer) const;
  int64_t between_rows(int rank, size_t stage, int node);

 private:
  using Pieces = std::vector<Range>;  // ascending, apart
  /// The rows that a node needs of a source.
  struct Needed {
    Pieces all;
    std::vector<Pieces> stages;
    std::vector<Pieces> first;  // of these, by stage, what no earlier one needs
    bool repeats = false;
  };
  struct Part {
    const Pieces* pieces = nullptr;
    std::vector<int64_t> begins;  // of the pieces, in the area
  };
  struct Area {
    RelayUse use = RelayUse::kOnce;
    int64_t rows = 0;
    std::vector<Part> parts;  // kOnce: by distance - 1; else by stage and distance - 1
  };

  const Exchange& of(size_t stage, int rank) const { return *stages_[stage][static_cast<size_t>(rank)]; }
  const Needed& needed(int source, int node);
  const Area& area(int relay);
  const Part& part(int relay, int distance, size_t stage);
  /// What crosses from a source to a relay in a stage.
  const Pieces& crossing(int source, int relay, size_t stage);
  Range place(int relay, int distance, size_t stage, const Range& rows);
  Exchange between(int rank, size_t stage);
  Exchange forward(int rank, int distance, size_t stage);

  const NodeLayout nodes_;
  const StageTables& stages_;
  const RelayUse use_;
  std::map<std::pair<int, int>, Needed> needed_;
  std::map<int, Area> areas_;
};

}  // namespace tangram::comm
