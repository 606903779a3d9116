// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward kernel, run by the emulator, against dense attention in float64.
#include <gtest/gtest.h>

#include <numbers>
#include <optional>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm90/emulated/tensor_maps.hpp"
#include "attn/sm90/forward/kernel.cuh"
#include "schedule/gather_runs.hpp"
#include "schedule/tile_list.hpp"
#include "support/relative_error.hpp"

namespace tangram::test {
namespace {

using emulated::Order;

struct Case {
  const char* name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
  float growth = 0;  // keys grow along the sequence: references must follow the scores
};

AttnShape shape_of(int64_t rows, int64_t keys, int heads_q, int heads_kv) {
  return {rows, keys, heads_q, heads_kv, 0, 0, DType::kBFloat16};
}

std::vector<Case> cases() {
  const std::vector<AttnSlice> documents{AttnSlice::causal({0, 130}, {0, 130}), AttnSlice::full({130, 300}, {130, 300}),
                                         AttnSlice::causal({300, 333}, {300, 333}),
                                         AttnSlice::full({400, 640}, {340, 660})};
  return {
      {"full", shape_of(200, 1000, 2, 1), {AttnSlice::full({0, 200}, {0, 1000})}},
      {"causal", shape_of(700, 700, 4, 2), {AttnSlice::causal({0, 700}, {0, 700})}},
      {"growing", shape_of(192, 900, 1, 1), {AttnSlice::full({0, 192}, {0, 900})}, 60},
      {"window", shape_of(900, 900, 4, 1), {{{0, 900}, {0, 900}, -200, 0}}},
      {"documents", shape_of(700, 700, 2, 2), documents},
      {"short", shape_of(70, 130, 8, 1), {AttnSlice::full({0, 5}, {3, 20}), AttnSlice::full({50, 60}, {100, 101})}},
      {"nothing", shape_of(100, 100, 2, 1), {}},
  };
}

template <int kHeadDim, bool kSoftcap, bool kGathered = false>
void expect_close(const Case& c, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", head_dim " << kHeadDim << ", order " << order.seed);
  constexpr int kKeys = sm90::forward_tile_keys(kHeadDim, kSoftcap);
  using Plain = sm90::ForwardTraits<__nv_bfloat16, kHeadDim, kKeys, kSoftcap>;
  using Traits = std::conditional_t<kGathered, sm90::GatheredTraits<Plain>, Plain>;
  RandomConfig config;
  config.shape = c.shape;
  config.shape.head_dim = config.shape.head_dim_v = kHeadDim;
  config.out_dtype = DType::kBFloat16;
  config.softcap = kSoftcap ? 5.0f : 0.0f;
  RandomAttention r = make_random(config, c.slices, 1);
  const AttnShape& s = config.shape;
  for (size_t i = 0, row_size = size_t(s.num_heads_kv * kHeadDim); i < r.problem.k.size() && c.growth > 0; ++i) {
    const auto row = static_cast<int64_t>(i / row_size), column = static_cast<int64_t>(i % row_size);
    r.k.set(row, int(column / kHeadDim), int(column % kHeadDim),
            r.problem.k[i] * (1 + c.growth * double(row) / double(s.seqlen_k)));
    r.problem.k[i] = r.k.at(row, int(column / kHeadDim), int(column % kHeadDim));
  }
  const int pack = s.num_heads_q / s.num_heads_kv;
  TileList tiles = schedule::build_tile_list(c.slices, s.seqlen_q, s.seqlen_k,
                                             {Traits::kBlockM / pack, sm90::forward_tile_keys(kHeadDim, false)});
  int32_t counters[2] = {0, 0};
  typename Traits::Params params{};
  params.q_map = emulated::heads_first_map(r.q, Traits::kBlockM / pack, pack, kHeadDim / 64);
  params.out_map = emulated::heads_first_map(r.out, 64 / pack, pack, 1);
  params.k_map = emulated::rows_first_map(r.k, kKeys);
  params.v_map = emulated::rows_first_map(r.v, kKeys);
  std::optional<schedule::GatheredList> gathered;
  if constexpr (kGathered) {
    gathered = schedule::gather_runs(tiles);
    ASSERT_TRUE(gathered.has_value());
    tiles.items = gathered->items;
    tiles.runs = gathered->runs;
    params.groups = gathered->groups.data();
    for (const int large : {0, 1}) {
      params.maps[0][large] = emulated::rows_first_map(r.k, large ? 64 : 16, 1);
      params.maps[1][large] = emulated::rows_first_map(r.v, large ? 64 : 16, 1);
    }
  }
  params.out = r.out.view().data;
  params.lse = r.lse.data();
  params.items = tiles.items.data();
  params.runs = tiles.runs.data();
  params.intervals = tiles.intervals.data();
  params.counters = counters;
  params.out_row_stride = int64_t{s.num_heads_q} * kHeadDim;
  params.out_head_stride = kHeadDim;
  params.lse_row_stride = s.num_heads_q;
  params.num_items = static_cast<int32_t>(tiles.items.size());
  params.num_groups = params.groups_per_section = s.num_heads_q / pack;
  params.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  params.heads_per_kv = pack;
  params.num_heads_q = s.num_heads_q;
  params.seqlen_k = static_cast<int32_t>(s.seqlen_k);
  params.softmax_scale = static_cast<float>(r.problem.scale);
  params.softcap = config.softcap;
  params.inner_scale = kSoftcap ? params.softmax_scale / params.softcap : 0.0f;
  params.exp_scale = (kSoftcap ? 1.0f : params.softmax_scale) * std::numbers::log2e_v<float>;
  params.slack = 8.0f / params.exp_scale;
  emulated::run({2, Traits::kThreads, order}, [&] { sm90::forward_kernel<Traits>(params); });
  const reference::DenseResult expected = reference::dense_attention(r.problem);
  EXPECT_LT(support::relative_error(r.out, expected.out, s.num_heads_q, kHeadDim), 4e-3);
  for (size_t i = 0; i < r.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      EXPECT_EQ(r.lse[i], expected.lse[i]) << i;
    } else {
      EXPECT_NEAR(r.lse[i], expected.lse[i], 1e-3 + 1e-5 * std::abs(expected.lse[i])) << i;
    }
  }
  EXPECT_EQ(counters[0], 0);
  EXPECT_EQ(counters[1], 0);
}

template <int kHeadDim, bool kSoftcap>
void expect_all_close(int first) {
  emulated::in_orders(first, cases(),
                      [](const Case& c, const Order& order) { expect_close<kHeadDim, kSoftcap>(c, order); });
}

TEST(Sm90EmulatedForward, AgreesWithFloat64HeadDim64) { expect_all_close<64, false>(0); }
TEST(Sm90EmulatedForward, AgreesWithFloat64HeadDim128) { expect_all_close<128, false>(1); }
TEST(Sm90EmulatedForward, AgreesWithFloat64WithSoftcapHeadDim64) { expect_all_close<64, true>(2); }
TEST(Sm90EmulatedForward, AgreesWithFloat64WithSoftcapHeadDim128) { expect_all_close<128, true>(0); }

/// Blocks of `block` rows and keys from key `shift` on, three of five of which are hidden.
std::vector<AttnSlice> blocks(int64_t rows, int64_t keys, int64_t block, int64_t shift) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q * block < rows; ++q) {
    for (int64_t k = 0; shift + (k + 1) * block <= keys; ++k) {
      const Range seen{shift + k * block, shift + (k + 1) * block};
      if ((q * 7 + k * 3) % 5 < 2)
        slices.push_back(AttnSlice::full({q * block, std::min((q + 1) * block, rows)}, seen));
    }
  }
  return slices;
}

std::vector<Case> block_cases() {
  std::vector<AttnSlice> with_window = blocks(384, 700, 64, 3);
  with_window.push_back({{0, 384}, {703, 1100}, -1100, 720});
  std::vector<AttnSlice> few{AttnSlice::full({0, 192}, {32, 48}), AttnSlice::full({0, 192}, {80, 112})};
  std::vector<AttnSlice> all;
  for (int64_t k = 0; k < 48; k += 16) all.push_back(AttnSlice::full({0, 192}, {k, k + 16}));
  return {
      {"blocks of 64", shape_of(384, 1024, 8, 1), blocks(384, 1024, 64, 0)},
      {"blocks of 16", shape_of(48, 700, 16, 2), blocks(48, 700, 16, 5)},
      {"blocks and a window", shape_of(384, 1100, 8, 1), with_window},
      {"less than a step", shape_of(200, 400, 2, 1), few},
      {"all keys, less than a step", shape_of(192, 48, 2, 1), all},
  };
}

template <int kHeadDim, bool kSoftcap>
void expect_blocks_close(int first) {
  emulated::in_orders(first, block_cases(), [](const Case& c, const Order& order) {
    const int64_t tile = sm90::forward_tile_rows(kHeadDim) * c.shape.num_heads_kv / c.shape.num_heads_q;
    if (c.slices[0].q_range.size() % tile != 0) return;  // rows of a tile do not see the same
    expect_close<kHeadDim, kSoftcap, true>(c, order);
  });
}

TEST(Sm90EmulatedForward, GathersBlocksHeadDim128) { expect_blocks_close<128, false>(0); }
TEST(Sm90EmulatedForward, GathersBlocksWithSoftcapHeadDim128) { expect_blocks_close<128, true>(2); }

}  // namespace
}  // namespace tangram::test
