// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What every rank takes from its plan of the tables of all others, beside what these prepare for themselves.
#include <gtest/gtest.h>

#include <random>

#include "runtime/device/program_attention.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

Mask random_mask(std::mt19937& rng, int64_t rows) {
  if (rng() % 4 == 0) return causal_mask(rows, rows);
  std::vector<int64_t> borders{0};
  while (borders.back() < rows) {
    borders.push_back(
        std::min(rows, borders.back() + 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(rows / 2))));
  }
  return varlen_mask(borders, rng() % 2 == 0);
}

DevicePassSpec spec_of(const Plan& plan, int rank, AttnPass pass, bool kept, DeviceProgram& written) {
  CallShape call;
  call.keeps = can_keep(plan);
  written.program =
      pass == AttnPass::kForward ? forward_program(plan, rank, call, {}) : backward_program(plan, rank, call, {}, kept);
  written.layout = lay_out_arena(written.program);
  return pass_spec(written, "pass", written.layout.arena_bytes);
}

void expect_tables(const std::vector<std::vector<const Exchange*>>& agreed, const std::vector<Exchange>& own,
                   int rank) {
  ASSERT_EQ(agreed.size(), own.size());
  for (size_t stage = 0; stage < own.size(); ++stage) {
    EXPECT_EQ(*agreed[stage][static_cast<size_t>(rank)], own[stage]) << "rank " << rank << ", stage " << stage;
  }
}

void expect_agreed(const std::shared_ptr<const Plan>& plan, AttnPass pass, bool kept) {
  for (int known_to = 0; known_to < plan->cp_size(); ++known_to) {
    DeviceProgram written;
    const DevicePassSpec known = spec_of(*plan, known_to, pass, kept, written);
    if (known.casts.empty() && known.reduces.empty()) continue;
    const auto agreed = agreed_rows(plan, pass, written);
    for (int rank = 0; rank < plan->cp_size(); ++rank) {
      DeviceProgram of_rank;
      const DevicePassSpec spec = spec_of(*plan, rank, pass, kept, of_rank);
      expect_tables(agreed->casts, spec.casts, rank);
      expect_tables(agreed->reduces, spec.reduces, rank);
      if (!spec.recv_buffers.empty()) {
        EXPECT_EQ(agreed->recv_buffers[static_cast<size_t>(rank)], spec.recv_buffers[0].rows);
      }
      // Where a rank's rows come back, from its tables alone.
      std::vector<int64_t> begins;
      int64_t row = 0;
      for (const Exchange& exchange : spec.reduces) {
        for (int source = 0; source < plan->cp_size(); ++source) {
          begins.push_back(row);
          for (const RowCopy& copy : exchange.sends) row += copy.peer == source ? copy.rows.size() : 0;
        }
      }
      EXPECT_EQ(agreed->return_begin[static_cast<size_t>(rank)], begins);
      EXPECT_EQ(agreed->return_rows[static_cast<size_t>(rank)], row);
    }
  }
}

TEST(AgreedTables, AreThoseThatEveryRankPrepares) {
  std::mt19937 rng(7);
  for (const int cp_size : {2, 4, 6, 8}) {
    for (const int ranks_per_node : {0, 1, 2, cp_size}) {
      for (int stages : {1, 3}) {
        DistAttnConfig config;
        config.cp_size = cp_size;
        config.heads = {4, 2, 64, 64, DType::kBFloat16};
        config.cost.ranks_per_node = ranks_per_node;
        config.overlap.num_stages_fwd = config.overlap.num_stages_bwd = stages;
        config.overlap.keep_remote_kv = rng() % 2 == 0;
        const auto plan = std::make_shared<const Plan>(make_plan(random_mask(rng, 512 * cp_size), config));
        ASSERT_TRUE(moves_kv_alone(*plan));
        SCOPED_TRACE(testing::Message() << cp_size << " ranks, " << ranks_per_node << " a node, " << stages
                                        << " stages");
        expect_agreed(plan, AttnPass::kForward, false);
        expect_agreed(plan, AttnPass::kBackward, false);
        if (can_keep(*plan)) expect_agreed(plan, AttnPass::kBackward, true);
      }
    }
  }
}

}  // namespace
}  // namespace tangram
