// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Maximum flow through a small graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tangram {

/// Maximum flow by Dinic's algorithm (1970).
class MaxFlow {
 public:
  explicit MaxFlow(size_t num_nodes) : edges_of_(num_nodes) {}
  size_t add_edge(size_t from, size_t to, int64_t capacity) {
    edges_of_[from].push_back(edges_.size());
    edges_.push_back({to, capacity});
    edges_of_[to].push_back(edges_.size());
    edges_.push_back({from, 0});
    return edges_.size() - 2;
  }
  int64_t flow_of(size_t edge) const { return edges_[edge ^ 1].capacity; }
  int64_t maximum(size_t source, size_t sink) {
    int64_t total = 0;
    while (level_nodes(source, sink)) {
      next_.assign(edges_of_.size(), 0);
      while (const int64_t pushed = push(source, sink, std::numeric_limits<int64_t>::max())) total += pushed;
    }
    return total;
  }

 private:
  struct Edge {
    size_t to;
    int64_t capacity;
  };
  bool level_nodes(size_t source, size_t sink) {
    level_.assign(edges_of_.size(), -1);
    level_[source] = 0;
    std::vector<size_t> queue{source};
    for (size_t at = 0; at < queue.size(); ++at) {
      for (const size_t e : edges_of_[queue[at]]) {
        if (edges_[e].capacity == 0 || level_[edges_[e].to] >= 0) continue;
        level_[edges_[e].to] = level_[queue[at]] + 1;
        queue.push_back(edges_[e].to);
      }
    }
    return level_[sink] >= 0;
  }
  int64_t push(size_t node, size_t sink, int64_t room) {
    if (node == sink) return room;
    for (size_t& i = next_[node]; i < edges_of_[node].size(); ++i) {
      const size_t e = edges_of_[node][i];
      if (edges_[e].capacity == 0 || level_[edges_[e].to] != level_[node] + 1) continue;
      const int64_t pushed = push(edges_[e].to, sink, std::min(room, edges_[e].capacity));
      if (pushed == 0) continue;
      edges_[e].capacity -= pushed;
      edges_[e ^ 1].capacity += pushed;
      return pushed;
    }
    return 0;
  }
  std::vector<Edge> edges_;
  std::vector<std::vector<size_t>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

}  // namespace tangram
