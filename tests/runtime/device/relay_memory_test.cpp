// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a plan says beforehand of the memory of relays, beside what passes over its programs ask for and counts of rows
// one by one.
#include "runtime/relay_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "comm/nodes/node_specs.hpp"
#include "runtime/device/program_attention.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

Mask random_documents(std::mt19937& rng, int64_t rows) {
  std::vector<int64_t> borders{0};
  while (borders.back() < rows) {
    borders.push_back(
        std::min(rows, borders.back() + 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(rows / 2))));
  }
  return varlen_mask(borders, true);
}

/// Bytes of a pass as NodeCommunicator::prepare_pass computes them.
int64_t bytes_of_pass(const std::shared_ptr<const Plan>& plan, int rank, AttnPass pass) {
  DeviceProgram written;
  written.program =
      pass == AttnPass::kForward ? forward_program(*plan, rank, {}, {}) : backward_program(*plan, rank, {}, {}, false);
  written.layout = lay_out_arena(written.program);
  DevicePassSpec spec = pass_spec(written, "pass", written.layout.arena_bytes);
  spec.shares_memory = true;
  spec.num_return_slots = ProgramAttention::kReturnSlots;
  spec.agreed = agreed_rows(plan, pass, written);
  const comm::NodeLayout nodes{plan->cp_size(), plan->config.cost.ranks_per_node};
  return comm::relay_bytes(
      spec, comm::relay_rows(comm::make_node_specs(nodes, rank, spec, spec.agreed->casts, spec.agreed->reduces, true)));
}

/// Rows that owners on the rail of `relay` give to its node.
int64_t count_relayed(const Plan& plan, int relay) {
  const int per_node = plan.config.cost.ranks_per_node, node = relay / per_node;
  std::set<std::pair<int, int64_t>> rows;
  for (int owner = relay % per_node; owner < plan.cp_size(); owner += per_node) {
    if (owner / per_node == node) continue;
    for (const Stage& stage : plan.ranks()[static_cast<size_t>(owner)].backward) {
      for (const RowCopy& copy : stage.exchange.sends) {
        if (copy.peer / per_node != node) continue;
        for (int64_t row = copy.rows.begin; row < copy.rows.end; ++row) rows.emplace(owner, row);
      }
    }
  }
  return std::ssize(rows);
}

TEST(RelayMemory, IsWhatPassesOverThePlanAskFor) {
  std::mt19937 rng(11);
  for (const auto& [cp_size, per_node] : {std::pair(2, 1), std::pair(4, 1), std::pair(4, 2), std::pair(8, 2)}) {
    for (const int stages : {1, 2, 4}) {
      DistAttnConfig config;
      config.cp_size = cp_size;
      config.heads = {4, 2, 64, 32, DType::kBFloat16};
      config.reduce_dtype = stages == 2 ? DType::kBFloat16 : DType::kFloat32;
      config.cost.ranks_per_node = per_node;
      config.overlap.num_stages_fwd = config.overlap.num_stages_bwd = stages;
      const Mask mask = stages == 1 ? causal_mask(256 * cp_size, 256 * cp_size) : random_documents(rng, 256 * cp_size);
      const auto plan = std::make_shared<const Plan>(make_plan(mask, config));
      const std::vector<RelayMemory> memory = relay_memory(*plan);
      int64_t most = 0;
      for (int rank = 0; rank < cp_size; ++rank) {
        SCOPED_TRACE(::testing::Message() << cp_size << " ranks, " << per_node << " a node, rank " << rank);
        const RelayMemory& own = memory[static_cast<size_t>(rank)];
        EXPECT_EQ(own.bytes, std::max(bytes_of_pass(plan, rank, AttnPass::kForward),
                                      bytes_of_pass(plan, rank, AttnPass::kBackward)));
        EXPECT_EQ(own.gradient_rows, count_relayed(*plan, rank));
        if (plan->ranks()[0].backward.size() <= 3) {  // else stages land where others were
          EXPECT_EQ(own.key_rows, count_relayed(*plan, rank));
        }
        most = std::max(most, own.bytes);
      }
      EXPECT_GT(most, 0);
    }
  }
}

TEST(RelayMemory, IsNoneOnOneNode) {
  DistAttnConfig config;
  config.cp_size = 4;
  for (const int ranks_per_node : {0, 4}) {
    config.cost.ranks_per_node = ranks_per_node;
    for (const RelayMemory& rank : relay_memory(make_plan(causal_mask(1024, 1024), config))) {
      EXPECT_EQ(rank.bytes, 0);
      EXPECT_EQ(rank.key_rows, 0);
    }
  }
}

}  // namespace
}  // namespace tangram
