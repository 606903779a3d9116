// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/node_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "cli/node_traffic.hpp"
#include "cli/text_table.hpp"
#include "plan/nodes/node_tables.hpp"
#include "plan/program/emit.hpp"
#include "runtime/relay_memory.hpp"

namespace tangram::cli {

namespace {

constexpr int kMaxNodesShown = 16;

struct Crossing {
  NodeShape nodes;
  NodeTraffic traffic;
  std::vector<std::vector<int64_t>> rows;  // [from node][to node]
  std::vector<RelayMemory> relays;         // by rank
  int busiest_relay = 0;

  int64_t sum(const std::vector<int64_t>& loads, int node) const {
    const auto begin = loads.begin() + nodes.rank(node, 0);
    return std::accumulate(begin, begin + nodes.ranks_per_node, int64_t{0});
  }
  int64_t most(const std::vector<int64_t>& loads, int node) const {
    const auto begin = loads.begin() + nodes.rank(node, 0);
    return *std::max_element(begin, begin + nodes.ranks_per_node);
  }
  double mean_of_rank() const { return static_cast<double>(traffic.total()) / nodes.cp_size; }
};

Crossing crossing_of(const Plan& plan) {
  Crossing crossing;
  crossing.nodes = node_shape(plan.config);
  crossing.relays = relay_memory(plan);
  const auto most = std::ranges::max_element(crossing.relays, {}, &RelayMemory::bytes);
  crossing.busiest_relay = static_cast<int>(most - crossing.relays.begin());
  const auto rows = rails_of(plan);
  crossing.traffic = traffic_of(rows, crossing.nodes);
  const auto num_nodes = static_cast<size_t>(crossing.nodes.num_nodes());
  crossing.rows.assign(num_nodes, std::vector<int64_t>(num_nodes));
  for (size_t to = 0; to < num_nodes; ++to) {
    for (const NodePiece& piece : rows[to]) {
      crossing.rows[static_cast<size_t>(crossing.nodes.node_of(piece.owner))][to] += piece.rows.size();
    }
  }
  return crossing;
}

std::string relay_text(const Crossing& crossing) {
  const RelayMemory& most = crossing.relays[static_cast<size_t>(crossing.busiest_relay)];
  return fmt::format("at most {} on a GPU beside peak memory, on rank {}: {} K/V rows and gradients of {}",
                     bytes_text(static_cast<double>(most.bytes)), crossing.busiest_relay, with_commas(most.key_rows),
                     with_commas(most.gradient_rows));
}

std::string sentence(const Crossing& crossing) {
  return fmt::format(
      "{} nodes of {} ranks; {} K/V rows cross, each once to each node that needs it; the busiest card "
      "has {} of them, the mean is {:.0f}; {} go over another rail than their owner's; relays take {}",
      crossing.nodes.num_nodes(), crossing.nodes.ranks_per_node, with_commas(crossing.traffic.total()),
      with_commas(crossing.traffic.busiest()), crossing.mean_of_rank(), with_commas(crossing.traffic.total_hops()),
      relay_text(crossing));
}

// Titles and a row for each node, of at most kMaxNodesShown.
std::vector<std::vector<std::string>> cells_of(const Crossing& crossing) {
  const int num_nodes = crossing.nodes.num_nodes(), num_shown = std::min(num_nodes, kMaxNodesShown);
  std::vector<std::vector<std::string>> cells{
      {"node", "sends", "busiest rail", "receives", "busiest rail", "to others"}};
  for (int node = 0; node < num_shown; ++node) {
    std::string others;
    for (int to = 0; to < num_nodes; ++to) {
      const int64_t rows = crossing.rows[static_cast<size_t>(node)][static_cast<size_t>(to)];
      if (rows > 0) others += fmt::format("{}{}: {}", others.empty() ? "" : "  ", to, with_commas(rows));
    }
    const NodeTraffic& traffic = crossing.traffic;
    cells.push_back({fmt::format("{}", node), with_commas(crossing.sum(traffic.sent, node)),
                     with_commas(crossing.most(traffic.sent, node)), with_commas(crossing.sum(traffic.received, node)),
                     with_commas(crossing.most(traffic.received, node)), others});
  }
  return cells;
}

}  // namespace

bool has_node_summary(const Plan& plan) { return has_nodes(plan.config) && moves_kv_alone(plan); }

std::string nodes_text(const Plan& plan) {
  const Crossing crossing = crossing_of(plan);
  const std::vector<std::vector<std::string>> cells = cells_of(crossing);
  TextTable table(cells[0]);
  for (size_t i = 1; i < cells.size(); ++i) table.add(cells[i]);
  std::string text =
      fmt::format("nodes      {} nodes of {} ranks\n", crossing.nodes.num_nodes(), crossing.nodes.ranks_per_node);
  text += fmt::format("crossing   {} K/V rows forward, each once to each node that needs it\n",
                      with_commas(crossing.traffic.total()));
  text += fmt::format(
      "busiest    network card {} rows, the mean {:.0f}; {} rows over another rail than their owner's\n",
      with_commas(crossing.traffic.busiest()), crossing.mean_of_rank(), with_commas(crossing.traffic.total_hops()));
  text += fmt::format("relays     {}\n", relay_text(crossing));
  text += table.text();
  const int num_more = crossing.nodes.num_nodes() - kMaxNodesShown;
  if (num_more > 0) text += fmt::format("  and {} more nodes\n", num_more);
  return text;
}

nlohmann::json nodes_json(const Plan& plan) {
  const Crossing crossing = crossing_of(plan);
  std::vector<int64_t> relay_bytes;
  for (const RelayMemory& relay : crossing.relays) relay_bytes.push_back(relay.bytes);
  return {{"ranks_per_node", crossing.nodes.ranks_per_node},
          {"rows_crossing", crossing.traffic.total()},
          {"rows_of_busiest_card", crossing.traffic.busiest()},
          {"rows_on_other_rails", crossing.traffic.total_hops()},
          {"rows_to_each_rank", rows_between_nodes(plan, crossing.nodes.ranks_per_node).to_each_rank},
          {"rows_between", crossing.rows},
          {"relay_bytes_by_rank", relay_bytes},
          {"sent_by_rank", crossing.traffic.sent},
          {"received_by_rank", crossing.traffic.received}};
}

std::string nodes_html(const Plan& plan) {
  const Crossing crossing = crossing_of(plan);
  std::string html = fmt::format(
      "<section class=\"card\"><div class=\"card-head\"><h2>Nodes</h2><span class=\"note\">K/V rows, forward</span>"
      "</div><p class=\"caption\">{}.</p><div class=\"scroll\"><table>",
      sentence(crossing));
  const std::vector<std::vector<std::string>> cells = cells_of(crossing);
  for (size_t i = 0; i < cells.size(); ++i) {
    html += "<tr>";
    for (const std::string& cell : cells[i]) html += i == 0 ? "<th>" + cell + "</th>" : "<td>" + cell + "</td>";
    html += "</tr>";
  }
  return html + "</table></div></section>";
}

}  // namespace tangram::cli
