// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/node_traffic.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

namespace tangram::cli {

NodeRows rows_between_nodes(const Plan& plan, int ranks_per_node) {
  NodeRows result;
  for (size_t rank = 0; rank < plan.ranks().size(); ++rank) {
    std::vector<std::tuple<int, Range>> needed;  // by node
    for (const Stage& stage : plan.ranks()[rank].forward) {
      for (const RowCopy& copy : stage.exchange.sends) {
        const int node = copy.peer / ranks_per_node;
        if (node == static_cast<int>(rank) / ranks_per_node) continue;
        result.to_each_rank += copy.rows.size();
        needed.emplace_back(node, copy.rows);
      }
    }
    std::sort(needed.begin(), needed.end());
    int last_node = -1;
    int64_t end = 0;
    for (const auto& [node, rows] : needed) {
      if (node != last_node) end = rows.begin;
      last_node = node;
      result.once_per_node += std::max<int64_t>(0, rows.end - std::max(end, rows.begin));
      end = std::max(end, rows.end);
    }
  }
  return result;
}

}  // namespace tangram::cli
