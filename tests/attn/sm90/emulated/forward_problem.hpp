// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward kernel, run by the emulator, against dense attention in float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numbers>
#include <optional>
#include <random>
#include <string>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm90/emulated/forward_cases.hpp"
#include "attn/sm90/emulated/problem.hpp"
#include "attn/sm90/emulated/tensor_maps.hpp"
#include "attn/sm90/forward/kernel.cuh"
#include "schedule/gather_runs.hpp"
#include "schedule/kv_splits.hpp"
#include "schedule/mask_image.hpp"
#include "schedule/ready_order.hpp"
#include "schedule/tile_list.hpp"
#include "support/relative_error.hpp"

namespace tangram::test::emulated_forward {

using emulated::Order;
using emulated_problem::config_of;
using emulated_problem::expect_gaps_untouched;
using emulated_problem::has_class;
using emulated_problem::ImageMemory;
using emulated_problem::LatePeer;
using emulated_problem::LocalKv;

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

/// What forward/merge.cu does, without sinks and earlier parts, in float64.
inline void merge_parts(RandomAttention& r, const schedule::PartList& parts, const std::vector<float>& out,
                        const std::vector<float>& lse) {
  const auto heads = static_cast<size_t>(r.config.shape.num_heads_q);
  const auto dim = static_cast<size_t>(r.config.shape.head_dim_v);
  for (const schedule::TileParts& tile : parts.tiles) {
    for (size_t i = 0; i < static_cast<size_t>(tile.num_rows) * heads; ++i) {
      const size_t stride = static_cast<size_t>(tile.num_rows) * heads;
      const size_t first = static_cast<size_t>(tile.first_row) * heads + i;
      double sum = 0;
      std::vector<double> row(dim);
      for (size_t part = 0; part < static_cast<size_t>(tile.num_parts); ++part) {
        const size_t at = first + part * stride;
        sum += std::exp(lse[at]);
        for (size_t d = 0; d < dim; ++d) row[d] += std::exp(lse[at]) * out[at * dim + d];
      }
      const int64_t to_row = tile.row_begin + static_cast<int64_t>(i / heads);
      r.lse[static_cast<size_t>(to_row) * heads + i % heads] = static_cast<float>(std::log(sum));
      for (size_t d = 0; d < dim; ++d) {
        const double value = sum == 0 ? 0 : row[d] / sum;
        r.out.set(to_row, static_cast<int>(i % heads), static_cast<int>(d), static_cast<float>(value));
      }
    }
  }
}

/// `max_logits`: of every head, or nothing.
inline void expect_results(const RandomAttention& r, const reference::DenseResult& expected,
                           const std::vector<float>& max_logits = {}) {
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
  for (size_t h = 0; h < max_logits.size(); ++h) {
    EXPECT_NEAR(max_logits[h], expected.max_logits[h], 1e-4 * (1 + std::abs(expected.max_logits[h]))) << h;
  }
}

/// Query heads of a key head whose rows share a tile: all, or those of a power of two.
template <typename Traits>
int packed_heads(const AttnShape& s) {
  const int group = s.num_heads_q / s.num_heads_kv;
  return Traits::kAnyGqaRatio ? group : 1 << std::countr_zero(static_cast<unsigned>(group));
}

/// What a call says of tensors and options, without lists.
template <typename Traits>
typename Traits::Params params_of(RandomAttention& r, int32_t* counters) {
  constexpr int kKeys = Traits::kBlockN;
  constexpr auto kColumns = Traits::kAnyDim ? emulated::Columns::kAny : emulated::Columns::kPanels;
  const AttnShape& s = r.config.shape;
  const int pack = packed_heads<Traits>(s);
  typename Traits::Params params{};
  params.q_map = emulated::heads_first_map(r.q_view(), Traits::kBlockM / pack, pack, Traits::kPanelsQk, kColumns);
  params.out_map =
      64 % pack == 0 ? emulated::heads_first_map(r.out_view(), 64 / pack, pack, 1, kColumns) : params.q_map;
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
  params.sink_per_row = r.config.sink_layout == SinkLayout::kSsh;
  params.out_type = r.config.out_dtype == DType::kFloat32 ? sm90::OutType::kFloat32 : sm90::OutType::kInput;
  params.counters = counters;
  params.out_row_stride = r.out_view().row_stride;
  params.out_head_stride = r.out_view().head_stride;
  params.lse_row_stride = s.num_heads_q;
  params.num_groups = params.groups_per_section = s.num_heads_q / pack;
  params.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  params.packing = sm90::packing_of(static_cast<uint32_t>(pack));
  params.heads_per_kv = s.num_heads_q / s.num_heads_kv;
  params.num_heads_q = s.num_heads_q;
  params.seqlen_k = static_cast<int32_t>(s.seqlen_k);
  params.softmax_scale = static_cast<float>(r.problem.scale);
  params.softcap = r.config.softcap;
  params.inner_scale = Traits::kSoftcap ? params.softmax_scale / params.softcap : 0.0f;
  params.exp_scale = (Traits::kSoftcap ? 1.0f : params.softmax_scale) * std::numbers::log2e_v<float>;
  params.rescale_threshold = 8.0f / params.exp_scale;
  params.head_dim_v = s.head_dim_v;
  return params;
}

/// Tiles as the kernel takes them, for params_of.
template <typename Traits>
TileList tiles_of(const std::vector<AttnSlice>& slices, const AttnShape& s, int anew_every = 0) {
  return schedule::build_tile_list(
      slices, s.seqlen_q, s.seqlen_k,
      {Traits::kBlockM / packed_heads<Traits>(s),
       sm90::forward_tile_keys(s.head_dim, s.head_dim_v, false, Traits::kWorkTiles), false, anew_every});
}

template <typename Traits>
void expect_close(const Case& c, int head_dim, int head_dim_v, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", head dims " << head_dim << " and " << head_dim_v << ", order "
                                  << order.seed);
  constexpr int kKeys = Traits::kBlockN;
  constexpr auto kColumns = Traits::kAnyDim ? emulated::Columns::kAny : emulated::Columns::kPanels;
  RandomConfig config = config_of(c.shape, head_dim, head_dim_v, Traits::kSoftcap ? 5.0f : 0.0f, c.strided);
  config.out_dtype = c.out;
  config.seqlen_sink = c.sinks;
  config.sink_layout = c.sink_layout;
  RandomAttention r = make_random(config, c.slices, 1);
  const AttnShape& s = config.shape;
  if (c.growth > 0) grow_keys(r, c.growth);
  reference::DenseResult expected = reference::dense_attention(r.problem);
  if (c.accumulate) add_earlier_part(r, expected);
  TileList tiles = tiles_of<Traits>(c.slices, s, c.anew_every);
  int32_t counters[2] = {0, 0};
  typename Traits::Params params = params_of<Traits>(r, counters);
  LatePeer peer(r.k, r.v);
  std::vector<std::function<void()>> events;
  if (c.late != LateKind::kNone) {
    schedule::order_by_readiness(tiles, peer.ready_flags(), 2);
    params.ready_flags = peer.params();
  }
  std::optional<LocalKv> elsewhere;
  if (c.elsewhere) {
    elsewhere.emplace(r.k, r.v);
    params.local_ranges = elsewhere->params();
    params.k_local_map = emulated::rows_first_map(elsewhere->k_view(r.k_view()), kKeys, kColumns);
    params.v_local_map = emulated::rows_first_map(elsewhere->v_view(r.v_view()), kKeys, kColumns);
  }
  std::optional<schedule::PartList> parts;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> part_out, part_lse, max_logits(static_cast<size_t>(s.num_heads_q), -INFINITY);
  if (c.part_steps > 0) {
    parts = schedule::cut_work_tiles(tiles, c.part_steps);
    ASSERT_FALSE(parts->tiles.empty());
    tiles = parts->list;
    part_lse.assign(static_cast<size_t>(parts->num_rows * s.num_heads_q), kNan);
    part_out.assign(part_lse.size() * static_cast<size_t>(s.head_dim_v), kNan);
    params.part_rows = parts->first_rows.data();
    params.part_out = part_out.data();
    params.part_lse = part_lse.data();
  }
  std::optional<schedule::GatheredList> gathered;
  if constexpr (Traits::kGathered) {
    gathered = schedule::gather_runs(tiles);
    ASSERT_TRUE(gathered.has_value());
    tiles.work_tiles = gathered->work_tiles;
    tiles.runs = gathered->runs;
    params.groups = gathered->groups.data();
    for (const int large : {0, 1}) {
      if (!elsewhere) continue;
      const TensorView k = elsewhere->k_view(r.k_view()), v = elsewhere->v_view(r.v_view());
      params.local_kv_maps[0][large] = emulated::rows_first_map(k, large ? 64 : 16, kColumns, 1);
      params.local_kv_maps[1][large] = emulated::rows_first_map(v, large ? 64 : 16, kColumns, 1);
    }
  }
  if (c.max_logits) {
    params.max_logits = max_logits.data();
    if (!Traits::kSoftcap) params.rescale_threshold = 0.0f;
  }
  params.accumulate = c.accumulate;
  params.work_tiles = tiles.work_tiles.data();
  params.runs = tiles.runs.data();
  params.intervals = tiles.intervals.data();
  ImageMemory image;
  if (!Traits::kGathered && !Traits::kFetchesRuns && !parts && c.late == LateKind::kNone &&
      order.seed % 2 == 0) {  // lists in an image that may hold another mask the next time
    const schedule::ImageLayout layout(s, tiles.shape, {128, 64, true},
                                       {.max_documents = 5, .passes = AttnPasses::kForward});
    layout.check(tiles, {});
    std::byte* const begin = image.allocate(layout.bytes());
    EXPECT_LE(layout.write(begin, tiles, {}), layout.bytes());
    params.work_tiles = reinterpret_cast<MaskTile*>(begin + layout.forward_work_tiles());
    params.runs = reinterpret_cast<TileRange*>(begin + layout.forward_runs());
    params.intervals = reinterpret_cast<RowInterval*>(begin + layout.intervals());
  }
  params.num_work_tiles = static_cast<int32_t>(tiles.work_tiles.size());
  if (c.late != LateKind::kNone) events = c.late == LateKind::kCome ? peer.send() : peer.fail();
  emulated::run({2, Traits::kThreads, order, 0, 0, events}, [&] { sm90::forward_kernel<Traits>(params); });
  EXPECT_EQ(counters[0], 0);
  EXPECT_EQ(counters[1], 0);
  if (c.late == LateKind::kNeverCome) return;  // it has come to its end
  if (parts) merge_parts(r, *parts, part_out, part_lse);
  expect_results(r, expected, c.max_logits ? max_logits : std::vector<float>());
}

/// Checks kernels for any head dimensions of a class, plain and with softcap; dimensions of the class itself in all
/// cases, with softcap in long runs. A quarter of the cases; other quarters run with softcap and with other dimensions.
/// Long runs take all.
template <int kDimQk, int kDimV, template <typename, int, int, bool> typename Traits = sm90::AnyDimForwardTraits>
void expect_any_dim_close(int head_dim, int head_dim_v) {
  ASSERT_TRUE(has_class(head_dim, head_dim_v, kDimQk, kDimV));
  const int first = head_dim / 8 + head_dim_v / 8;
  const bool is_class = head_dim == kDimQk && head_dim_v == kDimV;
  const auto expect_all = [&]<bool kSoftcap>(int first_order) {
    std::vector<Case> all = any_dim_cases();
    if (is_class && (!kSoftcap || support::is_long_run())) {
      for (Case& c : cases()) all.push_back(std::move(c));
    }
    emulated::in_orders(
        first_order, all,
        [&](const Case& c, const Order& order) {
          expect_close<Traits<__nv_bfloat16, kDimQk, kDimV, kSoftcap>>(c, head_dim, head_dim_v, order);
        },
        4);
  };
  expect_all.template operator()<false>(first);
  expect_all.template operator()<true>(first + 1);
}

/// option_cases with dimensions of the class in turn, plain and with softcap in turn; in long runs all of all.
template <int kDimQk, int kDimV>
void expect_options_close(const std::vector<std::pair<int, int>>& dims) {
  int index = 0;
  for (const Case& c : option_cases()) {
    for (size_t i = 0; i < (support::is_long_run() ? dims.size() : 1); ++i) {
      const auto [head_dim, head_dim_v] = dims[(static_cast<size_t>(index) + i) % dims.size()];
      ASSERT_TRUE(has_class(head_dim, head_dim_v, kDimQk, kDimV));
      const Order order = emulated::order(index);
      using Plain = sm90::AnyDimForwardTraits<__nv_bfloat16, kDimQk, kDimV, false>;
      using Softcap = sm90::AnyDimForwardTraits<__nv_bfloat16, kDimQk, kDimV, true>;
      if (index % 2 == 0 || support::is_long_run()) expect_close<Plain>(c, head_dim, head_dim_v, order);
      if (index % 2 == 1 || support::is_long_run()) expect_close<Softcap>(c, head_dim, head_dim_v, order);
    }
    ++index;
  }
}

}  // namespace tangram::test::emulated_forward
