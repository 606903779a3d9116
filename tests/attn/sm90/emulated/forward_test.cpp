// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward kernel, run by the emulator, against dense attention in float64.
#include <gtest/gtest.h>

#include <numbers>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm90/emulated/tensor_maps.hpp"
#include "attn/sm90/forward/kernel.cuh"
#include "schedule/mask_image.hpp"
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

template <int kHeadDim, bool kSoftcap>
void expect_close(const Case& c, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", head_dim " << kHeadDim << ", order " << order.seed);
  constexpr int kKeys = sm90::forward_tile_keys(kHeadDim, kSoftcap);
  using Traits = sm90::ForwardTraits<__nv_bfloat16, kHeadDim, kKeys, kSoftcap>;
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
  const TileList tiles = schedule::build_tile_list(c.slices, s.seqlen_q, s.seqlen_k,
                                                   {Traits::kBlockM / pack, sm90::forward_tile_keys(kHeadDim, false)});
  int32_t counters[2] = {0, 0};
  sm90::ForwardParams params{};
  params.q_map = emulated::heads_first_map(r.q, Traits::kBlockM / pack, pack, kHeadDim / 64);
  params.out_map = emulated::heads_first_map(r.out, 64 / pack, pack, 1);
  params.k_map = emulated::rows_first_map(r.k, kKeys);
  params.v_map = emulated::rows_first_map(r.v, kKeys);
  params.out = r.out.view().data;
  params.lse = r.lse.data();
  params.items = tiles.items.data();
  params.runs = tiles.runs.data();
  params.intervals = tiles.intervals.data();
  std::vector<std::byte> image;
  if (order.seed % 2 == 0) {  // lists in an image that may hold another mask the next time
    const schedule::ImageLayout layout(s, tiles.shape, {128, 64, true},
                                       {.documents = 5, .passes = AttnPasses::kForward});
    layout.check(tiles, {});
    image.assign(layout.bytes() + 256, std::byte{0x5a});
    std::byte* const begin = image.data() + (256 - reinterpret_cast<uintptr_t>(image.data()) % 256);
    EXPECT_LE(layout.write(begin, tiles, {}), layout.bytes());
    params.items = reinterpret_cast<TileItem*>(begin + layout.forward_items());
    params.runs = reinterpret_cast<TileRun*>(begin + layout.forward_runs());
    params.intervals = reinterpret_cast<RowInterval*>(begin + layout.intervals());
  }
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

}  // namespace
}  // namespace tangram::test
