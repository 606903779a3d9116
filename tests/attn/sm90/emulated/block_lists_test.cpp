// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Lists of chosen blocks that kernels build, with warps in random order: as one thread of the host builds them, bit for
// bit; and both passes over them against float64, each head group with blocks of its own.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "attn/cpu/random_heads.hpp"
#include "attn/gpu/builder/block_kernels.cuh"
#include "attn/sm90/emulated/backward_problem.hpp"
#include "attn/sm90/emulated/forward_problem.hpp"
#include "attn/sm90/emulated/query_backward_problem.hpp"
#include "schedule/block_lists_cases.hpp"

namespace tangram::test {
namespace {

namespace builder = schedule::builder;
using builder::BlockCase;
using builder::BlockChoice;
using builder::BuiltBlocks;
using emulated::Order;

builder::Report build(BuiltBlocks& images, const BlockTable& table, const Order& order) {
  return images.build(table, [&](const builder::BlockBuild& build, const builder::BlockLists& lists) {
    const gpu::builder::BlockListParams params{build, lists};
    const auto run = [&](int64_t count, int64_t each, uint32_t threads, const auto& kernel) {
      const auto blocks = static_cast<uint32_t>((count + each - 1) / each);
      if (blocks > 0) emulated::run_one_by_one({blocks, threads, order}, [&] { kernel(params); });
    };
    constexpr int kThreads = gpu::builder::kListThreads, kWarps = kThreads / 32;
    run(3, 1, kThreads, [](const auto& p) { gpu::builder::clear_lists_kernel(p); });
    run(int64_t{lists.num_lines} * lists.width, kThreads, kThreads,
        [](const auto& p) { gpu::builder::mark_choices_kernel(p); });
    run(builder::num_counts(build, lists), kWarps, kThreads,
        [](const auto& p) { gpu::builder::count_choices_kernel(p); });
    run(1, 1, 128, [](const auto& p) { gpu::builder::place_choices_kernel<128>(p); });
    run(builder::num_block_parts(build, lists), kWarps, kThreads,
        [](const auto& p) { gpu::builder::fill_lists_kernel(p); });
  });
}

TEST(Sm90EmulatedBlockLists, AreAsOneThreadOfTheHostBuildsThem) {
  std::mt19937 rng(21);
  int seed = 0;
  for (const BlockCase& c : builder::gathered_cases()) {
    BuiltBlocks images(c), serial(c);
    for (int round = 0; round < (support::is_long_run() ? 20 : 2); ++round) {
      BlockChoice choice = builder::random_block_choice(rng, c);
      const bool wrong = round % 4 == 1 && !choice.indices.empty();
      if (wrong) choice.indices[rng() % choice.indices.size()] = 12345;
      const builder::Report report = build(images, choice.table(), emulated::order(seed++));
      const builder::Report wanted = serial.build(choice.table());
      ASSERT_EQ(report.problem, wanted.problem);
      ASSERT_EQ(report.head_group, wanted.head_group);
      ASSERT_EQ(report.index, wanted.index);
      ASSERT_EQ(report.got, wanted.got);
      ASSERT_EQ(std::memcmp(images.image(), serial.image(), images.layout().bytes()), 0) << "case " << seed;
      if (!wrong) images.expect_as_host(choice);
    }
  }
}

struct AttendedCase {
  BlockCase blocks;
  int head_dim;
};

/// What is attended to: as builder::random_block_choice, of few keys.
std::vector<AttendedCase> attended_cases() {
  return {{builder::block_case(160, 160, 16, 2, 16, 16, 2), 128},
          {builder::block_case(160, 256, 16, 2, 16, 16, 1), 128},
          {builder::block_case(128, 128, 8, 4, 64, 64, 2), 128},
          {builder::block_case(96, 96, 16, 2, 16, 32, 2), 64},
          {builder::aligned_case(builder::block_case(128, 128, 16, 2, 16, 64, 2), 24), 64},
          {builder::aligned_case(builder::block_case(96, 96, 8, 1, 16, 48, 1), 24), 64},
          {builder::block_case(64, 64, 32, 1, 4, 16, 1), 128}};
}

/// Both passes over a table; `between` may change out and lse, which the backward pass reads.
template <int kHeadDim, typename Between>
void run_passes(RandomHeads& r, const BlockCase& c, const BlockChoice& choice, const Order& order,
                const Between& between) {
  BuiltBlocks images(c);
  ASSERT_EQ(build(images, choice.table(), order).problem, builder::Problem::kNone);
  const schedule::BlockImageLayout& layout = images.layout();
  const std::byte* const image = images.image();
  const bool named = layout.listed_head_groups() > 1;
  const auto run_forward = [&]<class Traits>() {
    int32_t counters[2] = {0, 0};
    typename Traits::Params params = emulated_forward::params_of<Traits>(r.all, counters);
    params.work_tiles = reinterpret_cast<const MaskTile*>(image + layout.forward_work_tiles());
    params.work_tile_groups = named ? reinterpret_cast<const int32_t*>(image + layout.work_tile_groups()) : nullptr;
    params.runs = reinterpret_cast<const TileRange*>(image + layout.runs());
    params.groups = reinterpret_cast<const int32_t*>(image);
    params.num_work_tiles = static_cast<int32_t>(layout.num_work_tiles(0));
    params.num_groups = named ? 1 : layout.num_head_groups();
    params.groups_per_section = named ? 1 : layout.forward_section();
    emulated::run({3, Traits::kThreads, order}, [&] { sm90::forward_kernel<Traits>(params); });
  };
  if constexpr (sm90::aligns_work_tiles(kHeadDim, kHeadDim)) {
    if (c.forward) run_forward.template operator()<sm90::AlignedTraitsOf<__nv_bfloat16, kHeadDim, false>>();
  }
  if (!c.forward) run_forward.template operator()<sm90::GatheredTraitsOf<__nv_bfloat16, kHeadDim, false>>();
  between();
  emulated_query_backward::run_call<__nv_bfloat16, kHeadDim>(
      r.all,
      {reinterpret_cast<const schedule::GroupWorkTile*>(image + layout.backward_work_tiles()),
       reinterpret_cast<const int32_t*>(image), reinterpret_cast<const schedule::RowBits*>(image),
       static_cast<int32_t>(layout.num_work_tiles(1)), named, layout.backward_section()},
      3, nullptr, order);
}

RandomHeads make_heads(const BlockCase& c, int head_dim, const BlockChoice& choice) {
  std::vector<std::vector<AttnSlice>> masks;
  for (const builder::Choice& of_group : choice.of_groups) masks.push_back(builder::slices_apart(of_group, c.shape));
  RandomConfig config = emulated_problem::config_of(c.shape, head_dim, head_dim, 0, false);
  config.out_dtype = config.grad_dtype = DType::kBFloat16;
  return make_random_heads(config, masks, 3);
}

template <int kHeadDim>
void expect_close(const BlockCase& c, const BlockChoice& choice, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.shape.seqlen_q << " rows, blocks of " << choice.of_groups[0].block << ", causal "
                                  << choice.of_groups[0].causal << ", order " << order.seed);
  RandomHeads r = make_heads(c, kHeadDim, choice);
  run_passes<kHeadDim>(r, c, choice, order, [&] {
    emulated_forward::expect_results(r.all, r.expected);
    emulated_backward::fill_results(r.all, r.expected);
  });
  emulated_backward::expect_gradients(r.all, r.expected, false);
}

BlockChoice choice_of(const std::vector<std::vector<int32_t>>& tables, int32_t width, bool causal) {
  BlockChoice choice;
  for (const std::vector<int32_t>& table : tables) {
    choice.of_groups.push_back({table, width, 16, causal});
    choice.indices.insert(choice.indices.end(), table.begin(), table.end());
  }
  return choice;
}

// The first query of a block that chose itself alone; and blocks that chose nothing.
TEST(Sm90EmulatedBlockLists, RowsThatSeeOneKeyOrNone) {
  const BlockCase c = builder::block_case(80, 80, 16, 2, 16, 16, 2);
  const std::vector<std::vector<int32_t>> tables{{0, -1, 1, -1, -1, -1, 3, 1, 4, -1},
                                                 {-1, -1, 1, 0, 2, -1, 3, -1, 0, 4}};
  expect_close<128>(c, choice_of(tables, 2, true), emulated::order(2));
}

TEST(Sm90EmulatedBlockLists, BothPassesOverThemAgreeWithFloat64) {
  std::mt19937 rng(22);
  int seed = 0;
  for (const AttendedCase& c : attended_cases()) {
    for (int round = 0; round < (support::is_long_run() ? 8 : 2); ++round) {
      BlockChoice choice = builder::random_block_choice(rng, c.blocks);
      const bool square = c.blocks.shape.seqlen_q == c.blocks.shape.seqlen_k;
      for (builder::Choice& of_group : choice.of_groups) of_group.causal = square && round % 2 == 1;
      (c.head_dim == 64 ? expect_close<64> : expect_close<128>)(c.blocks, choice, emulated::order(seed++));
    }
  }
}

/// The KV-stationary backward pass.
template <int kHeadDim>
void expect_gradients(const BlockCase& c, const BlockChoice& choice, bool of_host, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.shape.seqlen_q << " rows, blocks of " << choice.of_groups[0].block << ", causal "
                                  << choice.of_groups[0].causal << ", of the host " << of_host);
  BuiltBlocks images(c);
  const schedule::BlockImageLayout& layout = images.layout();
  ASSERT_TRUE(layout.kv_stationary());
  RandomHeads r = make_heads(c, kHeadDim, choice);
  if (of_host) {
    std::vector<schedule::BlockMask> masks;
    for (const std::vector<AttnSlice>& slices : r.slices()) masks.push_back(layout.make(slices));
    layout.check(masks);
    EXPECT_LE(layout.write(images.image(), masks), layout.bytes());
  } else {
    ASSERT_EQ(build(images, choice.table(), order).problem, builder::Problem::kNone);
  }
  const schedule::KeyImage& keys = layout.keys();
  const std::byte* const image = images.image();
  schedule::WorkList sizes;
  sizes.q_tiles.resize(static_cast<size_t>(keys.num_q_tiles()));
  sizes.num_accum_tiles = static_cast<int32_t>(keys.num_accum_tiles());
  sm90::backward::Params params{};
  params.work_tiles = reinterpret_cast<const schedule::WorkTile*>(image + keys.work_tiles());
  params.runs = reinterpret_cast<const TileRange*>(image + keys.runs());
  params.run_tiles = reinterpret_cast<const schedule::RangeQueryTiles*>(image + keys.run_tiles());
  params.q_tiles = reinterpret_cast<const schedule::QueryTile*>(image + keys.q_tiles());
  params.intervals = reinterpret_cast<const RowInterval*>(image);
  params.num_work_tiles = keys.schedule().num_work_tiles();
  params.walk = keys.walk();
  params.zeroed_sums = true;
  emulated_backward::fill_results(r.all, r.expected);
  emulated_backward::run_call<sm90::backward::Traits<__nv_bfloat16, kHeadDim, false, false>>(params, sizes, r.all,
                                                                                             false, 3, order);
  emulated_backward::expect_gradients(r.all, r.expected, false);
}

// With NaN in what a head group does not see, and in queries that see nothing.
TEST(Sm90EmulatedBlockLists, KvStationaryAgreesWithFloat64) {
  std::mt19937 rng(23);
  int seed = 0;
  for (const AttendedCase& c :
       {AttendedCase{builder::kv_stationary_case(builder::block_case(256, 256, 4, 2, 64, 128, 2)), 128},
        AttendedCase{builder::kv_stationary_case(builder::block_case(336, 400, 4, 2, 64, 128, 2)), 128},
        AttendedCase{builder::kv_stationary_case(builder::block_case(336, 336, 4, 4, 128, 128, 2), 64), 64},
        AttendedCase{builder::kv_stationary_case(builder::block_case(400, 400, 4, 2, 64, 256, 2), 64), 64}}) {
    for (int round = 0; round < (support::is_long_run() ? 8 : 2); ++round) {
      BlockCase of = c.blocks;
      of.gpu.multiprocessors = round == 0 ? 1 : 8;  // pieces of many heads, and of few
      BlockChoice choice = builder::random_block_choice(rng, of);
      const bool square = of.shape.seqlen_q == of.shape.seqlen_k;
      for (builder::Choice& of_group : choice.of_groups) of_group.causal = square && round % 2 == 1;
      for (const bool of_host : {false, true}) {
        if (of_host && round == 0 && !support::is_long_run()) continue;
        (c.head_dim == 64 ? expect_gradients<64> : expect_gradients<128>)(of, choice, of_host, emulated::order(seed++));
      }
    }
  }
}

/// What is compared where `meets` says no, [rows of the tensor, heads of it]: close to what is wanted, or NaN where
/// yes.
void expect_beside_nans(const HostTensor& got, const std::vector<double>& want, int heads, double tolerance,
                        const std::function<bool(int64_t row, int head)>& meets) {
  support::RelativeError error;
  const auto dim = static_cast<int64_t>(want.size()) / (got.rows() * heads);
  for (int64_t row = 0; row < got.rows(); ++row) {
    for (int head = 0; head < heads; ++head) {
      for (int64_t d = 0; d < dim; ++d) {
        const float x = got.at(row, head, static_cast<int>(d));
        if (meets(row, head)) {
          ASSERT_TRUE(std::isnan(x)) << "row " << row << ", head " << head;
        } else {
          error.add(x, want[static_cast<size_t>((row * heads + head) * dim + d)]);
        }
      }
    }
  }
  EXPECT_LT(error.value(), tolerance);
}

// A key with NaN is one of block 4 of head group 0, which query blocks 4 and 5 chose there. Some queries chose nothing,
// and a block of keys that no query chose is NaN.
TEST(Sm90EmulatedBlockLists, NanInAKeyReachesRowsThatChoseItAlone) {
  const BlockCase c = builder::block_case(96, 112, 16, 2, 16, 16, 2);
  const BlockChoice choice =
      choice_of({{-1, -1, 1, -1, 2, 0, 3, 1, 4, 2, 0, 4}, {3, 4, -1, -1, 2, -1, 0, 4, 5, -1, 5, 2}}, 2, false);
  RandomHeads r = make_heads(c, 128, choice);
  for (HostTensor* tensor : {&r.all.k, &r.all.v}) tensor->set(70, 0, 77, std::numeric_limits<float>::quiet_NaN());
  for (HostTensor* tensor : {&r.all.k, &r.all.v}) {
    for (int d = 0; d < 128; ++d) ASSERT_TRUE(std::isnan(tensor->at(100, 1, d))) << "no query sees it";
  }
  const auto sees = [](int64_t row, int head) { return row >= 64 && head < 8; };
  run_passes<128>(r, c, choice, emulated::order(1),
                  [&] { expect_beside_nans(r.all.out, r.expected.out, 16, 4e-3, sees); });
  expect_beside_nans(r.all.dq, r.expected.dq, 16, 5e-3, sees);
  // Their scores are NaN, and so what they give to all keys that they see: blocks 0, 2 and 4.
  const auto seen = [](int64_t key, int head) { return head == 0 && (key / 16) % 2 == 0 && key / 16 <= 4; };
  expect_beside_nans(r.all.dk, r.expected.dk, 2, 5e-3, seen);
  expect_beside_nans(r.all.dv, r.expected.dv, 2, 5e-3, seen);
}

}  // namespace
}  // namespace tangram::test
