// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/nodes/dispatch_nodes.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/nodes/even_nodes.hpp"
#include "plan/runs.hpp"

namespace tangram {

namespace {

// Budgets of the searches inside nodes, in nanoseconds: of all together, and of each in addition.
constexpr int64_t kWorkOfNodes = 120'000, kWorkOfNode = 3'000;
// Share of the budget for the search of rows for nodes, and trials of the exchanges after it.
constexpr double kShareOfWork = 0.25;
constexpr int kNumTrials = 400;
// Share of the tolerance of ranks' areas above the mean that is allowed to areas of nodes.
constexpr double kShareOfTolerance = 0.6;
// Least tolerance of areas inside a node, however far the node is above the mean of all nodes.
constexpr double kLeastTolerance = 0.001;

// What a node has of its own keys, as slices between its rows: keys numbered as these are.
std::vector<AttnSlice> own_keys(const std::vector<AttnSlice>& slices, const std::vector<OwnedRun>& own) {
  std::vector<AttnSlice> result;
  for (const AttnSlice& slice : slices) {
    for_each_key_part(slice, own, [&](size_t run, const AttnSlice& part) {
      result.push_back(shifted(part, 0, own[run].row - own[run].global.begin));
    });
  }
  result = merge_touching(std::move(result));
  std::stable_sort(result.begin(), result.end(),
                   [](const AttnSlice& a, const AttnSlice& b) { return a.q_range.begin < b.q_range.begin; });
  return result;
}

}  // namespace

Dispatch dispatch_to_nodes(const Mask& mask, const DistAttnConfig& config) {
  const NodeShape nodes = node_shape(config);
  DistAttnConfig of_nodes = config;
  of_nodes.cp_size = nodes.num_nodes();
  of_nodes.cost.ranks_per_node = 0;
  of_nodes.cost.forward_flops_per_s *= nodes.ranks_per_node;
  of_nodes.cost.backward_flops_per_s *= nodes.ranks_per_node;
  of_nodes.cost.link_bytes_per_s = config.cost.between_bytes_per_s * nodes.ranks_per_node;
  of_nodes.cost.copy_latency_s = 0;  // rows of a rail share a message
  // Ranks may have more area above the mean than nodes are searched for; some of that is left to the searches inside.
  const int64_t rows_per_rank = mask.seqlen_q() / config.cp_size;
  const double left = balance_tolerance(rows_per_rank) - balance_tolerance(rows_per_rank * nodes.ranks_per_node);
  const Dispatch dispatch = dispatch_tangram(mask, of_nodes, {kShareOfWork, left - kLeastTolerance});
  if (config.dispatch.chunk_size > 0 || !is_pack(mask.slices())) return dispatch;
  if (config.cp_size == 2) return dispatch;  // two cards have one another's loads: exchanges were never better
  const double tolerance = kShareOfTolerance * balance_tolerance(rows_per_rank);
  return even_nodes(mask, dispatch, {tolerance, kNumTrials});
}

Dispatch dispatch_inside_nodes(const Mask& mask, const DistAttnConfig& config, const Dispatch& of_nodes) {
  const NodeShape nodes = node_shape(config);
  const std::vector<OwnedRun> runs = owned_runs(of_nodes);
  std::vector<std::vector<OwnedRun>> own(static_cast<size_t>(nodes.num_nodes()));
  for (const OwnedRun& run : runs) own[static_cast<size_t>(run.owner)].push_back(run);
  const std::vector<std::vector<AttnSlice>> slices = cut_by_rank(mask, runs, nodes.num_nodes());
  const int64_t num_rows = of_nodes.rows_per_rank();
  const double mean_area = static_cast<double>(mask.area()) / config.cp_size;
  const double limit = (1 + balance_tolerance(num_rows / nodes.ranks_per_node)) * mean_area;
  DistAttnConfig inside = config;
  inside.cp_size = nodes.ranks_per_node;
  inside.cost.ranks_per_node = 0;

  // Runs of ranks in the rows of each node, cut again where the node's rows do not follow each other.
  std::vector<std::pair<Range, int>> owned;
  for (int node = 0; node < nodes.num_nodes(); ++node) {
    const auto n = static_cast<size_t>(node);
    const Mask local(num_rows, mask.seqlen_k(), slices[n]);
    const std::vector<AttnSlice> keys =
        own_keys(std::vector<AttnSlice>(local.slices().begin(), local.slices().end()), own[n]);
    const double mean_here = std::max(1.0, static_cast<double>(local.area()) / nodes.ranks_per_node);
    const NodeDispatch rows{local, keys, std::max(kLeastTolerance, limit / mean_here - 1),
                            kWorkOfNodes / nodes.num_nodes() + kWorkOfNode};
    const Dispatch dispatch = dispatch_inside_node(rows, inside);
    // Both in the order of the node's rows.
    auto of_node = own[n].begin();
    for (const OwnedRun& run : owned_runs(dispatch)) {
      for (;; ++of_node) {
        const Range local_rows{of_node->row, of_node->row + of_node->global.size()};
        const Range part = intersect(run.global, local_rows);
        const int64_t begin = of_node->global.begin + part.begin - of_node->row;
        owned.push_back({{begin, begin + part.size()}, nodes.rank(node, run.owner)});
        if (local_rows.end > run.global.end) break;
        if (local_rows.end == run.global.end) {
          ++of_node;
          break;
        }
      }
    }
  }
  std::sort(owned.begin(), owned.end());
  int64_t chunk_size = config.dispatch.chunk_size;
  if (chunk_size == 0) {
    chunk_size = mask.seqlen_q() / config.cp_size;
    for (const auto& [rows, rank] : owned) chunk_size = std::gcd(chunk_size, rows.end);
  }
  Dispatch result{config.cp_size, chunk_size, {}};
  for (const auto& [rows, rank] : owned) result.rank_of_chunk.append(rows.size() / chunk_size, rank);
  return result;
}

ChosenDispatch dispatch_over_nodes(const Mask& mask, const DistAttnConfig& config) {
  ChosenDispatch best{DispatchAlgorithm::kTangram,
                      dispatch_inside_nodes(mask, config, dispatch_to_nodes(mask, config))};
  // A dispatch that knows no nodes tears more documents apart.
  if (config.dispatch.algorithm == DispatchAlgorithm::kTangram || is_pack(mask.slices())) return best;
  DistAttnConfig flat_config = config;
  flat_config.cost.ranks_per_node = 0;
  ChosenDispatch flat = dispatch_queries(mask, flat_config);
  const auto price = [&](const Dispatch& dispatch) {
    const DispatchCost cost = dispatch_cost(mask, config, dispatch);
    return cost.seconds + cost.excess_s;
  };
  if (price(flat.dispatch) <= price(best.dispatch)) best = std::move(flat);
  return best;
}

}  // namespace tangram
