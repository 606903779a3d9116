// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward kernel, run by the emulator, against dense attention in float64.
#pragma once

#include <gtest/gtest.h>

#include <numbers>
#include <optional>
#include <random>
#include <string>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm90/emulated/problem.hpp"
#include "attn/sm90/emulated/tensor_maps.hpp"
#include "attn/sm90/forward/kernel.cuh"
#include "schedule/gather_runs.hpp"
#include "schedule/mask_image.hpp"
#include "schedule/tile_list.hpp"
#include "support/relative_error.hpp"

namespace tangram::test::emulated_forward {

using emulated::Order;
using emulated_problem::config_of;
using emulated_problem::documents;
using emulated_problem::expect_gaps_untouched;
using emulated_problem::has_class;
using emulated_problem::ImageMemory;
using emulated_problem::shape_of;
using emulated_problem::short_slices;
using emulated_problem::small_documents;

struct Case {
  const char* name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
  float growth = 0;  // keys grow along the sequence: references must follow the scores
  DType out = DType::kBFloat16;
  int64_t sinks = 0;
  bool accumulate = false;  // out and lse hold an earlier part
  bool strided = false;
};

inline std::vector<Case> cases() {
  return {
      {"full", shape_of(200, 1000, 2, 1), {AttnSlice::full({0, 200}, {0, 1000})}},
      {"causal", shape_of(700, 700, 4, 2), {AttnSlice::causal({0, 700}, {0, 700})}},
      {"growing", shape_of(192, 900, 1, 1), {AttnSlice::full({0, 192}, {0, 900})}, 60},
      {"window", shape_of(900, 900, 4, 1), {{{0, 900}, {0, 900}, -200, 0}}},
      {"documents", shape_of(700, 700, 2, 2), documents()},
      {"short", shape_of(70, 130, 8, 1), short_slices()},
      {"nothing", shape_of(100, 100, 2, 1), {}},
  };
}

/// Of kernels for any head dimension: all ways in which rows leave them, and gaps behind each row that hold NaN.
inline std::vector<Case> any_dim_cases() {
  return {
      {.name = "causal",
       .shape = shape_of(300, 300, 4, 2),
       .slices = {AttnSlice::causal({0, 300}, {0, 300})},
       .strided = true},
      {.name = "documents",
       .shape = shape_of(270, 300, 2, 2),
       .slices = small_documents(),
       .out = DType::kFloat32,
       .sinks = 2,
       .strided = true},
      {.name = "window",
       .shape = shape_of(400, 400, 4, 1),
       .slices = {{{0, 400}, {0, 400}, -200, 0}},
       .out = DType::kFloat32,
       .accumulate = true},
      {.name = "short", .shape = shape_of(70, 130, 8, 1), .slices = short_slices(), .strided = true},
  };
}

/// Keys of row i are multiplied by 1 + growth * i / rows.
inline void grow_keys(RandomAttention& r, float growth) {
  const AttnShape& s = r.config.shape;
  const auto row_size = static_cast<size_t>(s.num_heads_kv * s.head_dim);
  for (size_t i = 0; i < r.problem.k.size(); ++i) {
    const auto row = static_cast<int64_t>(i / row_size), column = static_cast<int64_t>(i % row_size);
    const int head = static_cast<int>(column / s.head_dim), d = static_cast<int>(column % s.head_dim);
    r.k.set(row, head, d, r.problem.k[i] * (1 + growth * double(row) / double(s.seqlen_k)));
    r.problem.k[i] = r.k.at(row, head, d);
  }
}

/// Random rows of an earlier part; `expected` becomes what both parts together are.
inline void add_earlier_part(RandomAttention& r, reference::DenseResult& expected) {
  const AttnShape& s = r.config.shape;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < r.lse.size(); ++i) {
    r.lse[i] = normal(random);
    const double both = std::log(std::exp(r.lse[i]) + std::exp(expected.lse[i]));
    for (int d = 0; d < s.head_dim_v; ++d) {
      const auto row = static_cast<int64_t>(i) / s.num_heads_q;
      const int head = static_cast<int>(i) % s.num_heads_q;
      r.out.set(row, head, d, normal(random));
      double& value = expected.out[i * size_t(s.head_dim_v) + size_t(d)];
      value = value * std::exp(expected.lse[i] - both) + r.out.at(row, head, d) * std::exp(r.lse[i] - both);
    }
    expected.lse[i] = both;
  }
}

/// What a call says of tensors and options, without lists. Tiles have rows of all query heads of a key head.
template <typename Traits>
typename Traits::Params params_of(RandomAttention& r, int32_t* counters) {
  constexpr int kKeys = Traits::kBlockN;
  constexpr auto kColumns = Traits::kAnyDim ? emulated::Columns::kAny : emulated::Columns::kPanels;
  const AttnShape& s = r.config.shape;
  const int pack = s.num_heads_q / s.num_heads_kv;
  typename Traits::Params params{};
  params.q_map = emulated::heads_first_map(r.q_view(), Traits::kBlockM / pack, pack, Traits::kPanelsQk, kColumns);
  params.out_map = emulated::heads_first_map(r.out_view(), 64 / pack, pack, 1, kColumns);
  params.k_map = emulated::rows_first_map(r.k_view(), kKeys, kColumns);
  params.v_map = emulated::rows_first_map(r.v_view(), kKeys, kColumns);
  if constexpr (Traits::kGathered) {
    for (const int large : {0, 1}) {
      params.maps[0][large] = emulated::rows_first_map(r.k_view(), large ? 64 : 16, kColumns, 1);
      params.maps[1][large] = emulated::rows_first_map(r.v_view(), large ? 64 : 16, kColumns, 1);
    }
  }
  params.out = r.out.view().data;
  params.lse = r.lse.data();
  params.sink = r.sink.empty() ? nullptr : r.sink.data();
  params.num_sinks = static_cast<int32_t>(r.config.seqlen_sink);
  params.out_type = r.config.out_dtype == DType::kFloat32 ? sm90::OutType::kFloat32 : sm90::OutType::kInput;
  params.counters = counters;
  params.out_row_stride = r.out_view().row_stride;
  params.out_head_stride = r.out_view().head_stride;
  params.lse_row_stride = s.num_heads_q;
  params.num_groups = params.groups_per_section = s.num_heads_q / pack;
  params.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  params.heads_per_kv = pack;
  params.num_heads_q = s.num_heads_q;
  params.seqlen_k = static_cast<int32_t>(s.seqlen_k);
  params.softmax_scale = static_cast<float>(r.problem.scale);
  params.softcap = r.config.softcap;
  params.inner_scale = Traits::kSoftcap ? params.softmax_scale / params.softcap : 0.0f;
  params.exp_scale = (Traits::kSoftcap ? 1.0f : params.softmax_scale) * std::numbers::log2e_v<float>;
  params.slack = 8.0f / params.exp_scale;
  params.head_dim_v = s.head_dim_v;
  return params;
}

/// Tiles as the kernel takes them, for params_of.
template <typename Traits>
TileList tiles_of(const std::vector<AttnSlice>& slices, const AttnShape& s) {
  return schedule::build_tile_list(
      slices, s.seqlen_q, s.seqlen_k,
      {Traits::kBlockM * s.num_heads_kv / s.num_heads_q, sm90::forward_tile_keys(s.head_dim, s.head_dim_v, false)});
}

inline void expect_results(const RandomAttention& r, const reference::DenseResult& expected) {
  const AttnShape& s = r.config.shape;
  EXPECT_LT(support::relative_error(r.out, expected.out, s.num_heads_q, s.head_dim_v), 4e-3);
  expect_gaps_untouched(r.out, s.num_heads_q, s.head_dim_v);
  for (size_t i = 0; i < r.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      EXPECT_EQ(r.lse[i], expected.lse[i]) << i;
    } else {
      EXPECT_NEAR(r.lse[i], expected.lse[i], 1e-3 + 1e-5 * std::abs(expected.lse[i])) << i;
    }
  }
}

template <typename Traits>
void expect_close(const Case& c, int head_dim, int head_dim_v, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", head dims " << head_dim << " and " << head_dim_v << ", order "
                                  << order.seed);
  RandomConfig config = config_of(c.shape, head_dim, head_dim_v, Traits::kSoftcap ? 5.0f : 0.0f, c.strided);
  config.out_dtype = c.out;
  config.seqlen_sink = c.sinks;
  RandomAttention r = make_random(config, c.slices, 1);
  const AttnShape& s = config.shape;
  if (c.growth > 0) grow_keys(r, c.growth);
  reference::DenseResult expected = reference::dense_attention(r.problem);
  if (c.accumulate) add_earlier_part(r, expected);
  TileList tiles = tiles_of<Traits>(c.slices, s);
  int32_t counters[2] = {0, 0};
  typename Traits::Params params = params_of<Traits>(r, counters);
  std::optional<schedule::GatheredList> gathered;
  if constexpr (Traits::kGathered) {
    gathered = schedule::gather_runs(tiles);
    ASSERT_TRUE(gathered.has_value());
    tiles.items = gathered->items;
    tiles.runs = gathered->runs;
    params.groups = gathered->groups.data();
  }
  params.accumulate = c.accumulate;
  params.items = tiles.items.data();
  params.runs = tiles.runs.data();
  params.intervals = tiles.intervals.data();
  ImageMemory image;
  if (!Traits::kGathered && order.seed % 2 == 0) {  // lists in an image that may hold another mask the next time
    const schedule::ImageLayout layout(s, tiles.shape, {128, 64, true},
                                       {.documents = 5, .passes = AttnPasses::kForward});
    layout.check(tiles, {});
    std::byte* const begin = image.allocate(layout.bytes());
    EXPECT_LE(layout.write(begin, tiles, {}), layout.bytes());
    params.items = reinterpret_cast<TileItem*>(begin + layout.forward_items());
    params.runs = reinterpret_cast<TileRun*>(begin + layout.forward_runs());
    params.intervals = reinterpret_cast<RowInterval*>(begin + layout.intervals());
  }
  params.num_items = static_cast<int32_t>(tiles.items.size());
  emulated::run({2, Traits::kThreads, order}, [&] { sm90::forward_kernel<Traits>(params); });
  expect_results(r, expected);
  EXPECT_EQ(counters[0], 0);
  EXPECT_EQ(counters[1], 0);
}

/// Of kernels for any head dimensions of a class, plain and with softcap; those of the class itself in all cases, with
/// softcap in long runs.
template <int kDimQk, int kDimV>
void expect_any_dim_close(int head_dim, int head_dim_v) {
  ASSERT_TRUE(has_class(head_dim, head_dim_v, kDimQk, kDimV));
  const int first = head_dim / 8 + head_dim_v / 8;
  const bool is_class = head_dim == kDimQk && head_dim_v == kDimV;
  const auto expect_all = [&]<bool kSoftcap>(int first_order) {
    std::vector<Case> all = any_dim_cases();
    if (is_class && (!kSoftcap || support::is_long_run())) {
      for (Case& c : cases()) all.push_back(std::move(c));
    }
    emulated::in_orders(first_order, all, [&](const Case& c, const Order& order) {
      expect_close<sm90::AnyDimForwardTraits<__nv_bfloat16, kDimQk, kDimV, kSoftcap>>(c, head_dim, head_dim_v, order);
    });
  };
  expect_all.template operator()<false>(first);
  expect_all.template operator()<true>(first + 1);
}

}  // namespace tangram::test::emulated_forward
