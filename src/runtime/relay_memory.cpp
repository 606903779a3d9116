// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/relay_memory.hpp"

#include <algorithm>

#include "comm/nodes/node_specs.hpp"
#include "plan/nodes/node_shape.hpp"
#include "runtime/device/program_attention.hpp"

namespace tangram {

namespace {

/// By stage that moves rows, then by rank.
comm::StageTables tables_of(const Plan& plan, std::vector<Stage> RankPlan::* pass) {
  comm::StageTables tables;
  const size_t num_stages = plan.ranks().empty() ? 0 : (plan.ranks().front().*pass).size();
  for (size_t stage = 1; stage < num_stages; ++stage) {  // behind the one of own keys
    std::vector<const Exchange*>& ranks = tables.emplace_back();
    for (const RankPlan& rank : plan.ranks()) ranks.push_back(&(rank.*pass)[stage].exchange);
  }
  return tables;
}

}  // namespace

DevicePassSpec tensors_over_nodes(const Plan& plan, int rank, AttnPass pass) {
  const HeadConfig& heads = plan.config.heads;
  const int64_t rows = plan.ranks()[static_cast<size_t>(rank)].kv_rows;
  DevicePassSpec spec;
  spec.shares_memory = true;
  spec.num_return_slots = ProgramAttention::kReturnSlots;
  for (const int dim : {heads.head_dim, heads.head_dim_v}) {
    spec.recv_buffers.push_back({rows, heads.num_heads_kv, dim, heads.dtype});
    if (pass == AttnPass::kForward) continue;
    spec.returns.push_back({.partial_rows = rows,
                            .owned_rows = plan.k_dispatch.rows_per_rank(),
                            .heads = heads.num_heads_kv,
                            .dim = dim,
                            .partial_dtype = DType::kFloat32,
                            .reduce_dtype = plan.config.reduce_dtype});
  }
  return spec;
}

std::vector<RelayMemory> relay_memory(const Plan& plan) {
  std::vector<RelayMemory> memory(static_cast<size_t>(plan.cp_size()));
  if (!has_nodes(plan.config)) return memory;
  const comm::NodeLayout nodes{plan.cp_size(), plan.config.cost.ranks_per_node};
  const comm::StageTables forward = tables_of(plan, &RankPlan::forward),
                          backward = tables_of(plan, &RankPlan::backward);
  const comm::StageTables nothing;
  // Passes by NCCL between nodes are prepared like this: receives are in order.
  comm::TwoLevel there(nodes, forward, comm::RelayUse::kTwoStages), back(nodes, backward, comm::RelayUse::kTwoStages),
      returned(nodes, backward, comm::RelayUse::kOnce), none(nodes, nothing, comm::RelayUse::kOnce);
  for (int rank = 0; rank < plan.cp_size(); ++rank) {
    const comm::RelayRows passes[] = {
        comm::relay_rows(nodes, rank, there, forward.size(), none, 0),
        comm::relay_rows(nodes, rank, back, backward.size(), returned, backward.size()),
    };
    RelayMemory& own = memory[static_cast<size_t>(rank)];
    own.key_rows = std::max(passes[0].keys, passes[1].keys);
    own.gradient_rows = passes[1].gradients;
    own.bytes = std::max(comm::relay_bytes(tensors_over_nodes(plan, rank, AttnPass::kForward), passes[0]),
                         comm::relay_bytes(tensors_over_nodes(plan, rank, AttnPass::kBackward), passes[1]));
  }
  return memory;
}

}  // namespace tangram
