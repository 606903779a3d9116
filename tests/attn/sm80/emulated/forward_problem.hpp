// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward kernel of backend sm80, run by the emulator, against dense attention in float64.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <numbers>
#include <optional>
#include <random>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm80/emulated/problem.hpp"
#include "attn/sm80/float32/forward.cuh"
#include "attn/sm80/forward/kernel.cuh"
#include "schedule/kv_splits.hpp"
#include "schedule/tile_list.hpp"
#include "support/relative_error.hpp"

namespace tangram::test::emulated_sm80 {

struct ForwardCase {
  const char* name;
  AttnShape shape;  // without head dimensions
  std::vector<AttnSlice> slices;
  float growth = 0;  // keys grow along the sequence: references must follow the scores
  DType out = DType::kBFloat16;
  int64_t sinks = 0;
  SinkLayout sink_layout = SinkLayout::kSh;
  bool accumulate = false;  // out and lse hold an earlier part
  bool max_logits = false;
  int64_t part_steps = 0;  // unless 0: work tiles are cut into parts of at most so many steps
  Keys keys = Keys::kThere;
};

/// Keys of row i are multiplied by 1 + growth * i / rows.
inline void grow_keys(RandomAttention& r, float growth) {
  const AttnShape& s = r.config.shape;
  const auto row_size = static_cast<size_t>(s.num_heads_kv * s.head_dim);
  for (size_t i = 0; i < r.problem.k.size(); ++i) {
    const auto row = static_cast<int64_t>(i / row_size), column = static_cast<int64_t>(i % row_size);
    const int head = static_cast<int>(column / s.head_dim), d = static_cast<int>(column % s.head_dim);
    r.k.set(row, head, d, static_cast<float>(r.problem.k[i] * (1 + growth * double(row) / double(s.seqlen_k))));
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

/// Results of parts in the workspace, of any content before.
struct PartResults {
  std::vector<float> out, lse;

  PartResults(const schedule::PartList& parts, const AttnShape& s) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    lse.assign(static_cast<size_t>(parts.num_rows * s.num_heads_q), kNan);
    out.assign(lse.size() * static_cast<size_t>(s.head_dim_v), kNan);
  }
  /// What forward/combine.cu does, without sinks and earlier parts, in float64.
  void combine(RandomAttention& r, const schedule::PartList& parts) const {
    const auto heads = static_cast<size_t>(r.config.shape.num_heads_q);
    const auto dim = static_cast<size_t>(r.config.shape.head_dim_v);
    for (const schedule::TileParts& tile : parts.tiles) {
      const size_t stride = static_cast<size_t>(tile.num_rows) * heads;
      for (size_t i = 0; i < stride; ++i) {
        double sum = 0;
        std::vector<double> row(dim);
        for (size_t part = 0; part < static_cast<size_t>(tile.num_parts); ++part) {
          const size_t at = static_cast<size_t>(tile.first_row) * heads + i + part * stride;
          sum += std::exp(double{lse[at]});
          for (size_t d = 0; d < dim; ++d) row[d] += std::exp(double{lse[at]}) * out[at * dim + d];
        }
        const int64_t to_row = tile.row_begin + static_cast<int64_t>(i / heads);
        r.lse[static_cast<size_t>(to_row) * heads + i % heads] = static_cast<float>(std::log(sum));
        for (size_t d = 0; d < dim; ++d) {
          r.out.set(to_row, static_cast<int>(i % heads), static_cast<int>(d),
                    static_cast<float>(sum == 0 ? 0 : row[d] / sum));
        }
      }
    }
  }
};

template <typename Traits>
void expect_close(const ForwardCase& c, int head_dim, int head_dim_v, const emulated::Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", head dims " << head_dim << " and " << head_dim_v << ", order "
                                  << order.seed);
  RandomConfig config = config_of(c.shape, head_dim, head_dim_v, Traits::kSoftcap ? 5.0f : 0.0f);
  config.shape.dtype = dtype_of<typename Traits::Element>();
  config.out_dtype = c.out == DType::kFloat32 ? c.out : config.shape.dtype;
  config.seqlen_sink = c.sinks;
  config.sink_layout = c.sink_layout;
  RandomAttention r = make_random(config, c.slices, 1);
  const AttnShape& s = config.shape;
  constexpr bool kFloat32 = std::is_same_v<typename Traits::Element, float>;
  if constexpr (!kFloat32) {
    ASSERT_EQ(sm80::find_shape_class(head_dim, head_dim_v), &sm80::shape_class(Traits::kDimQk, Traits::kDimV));
  }
  if (c.growth > 0) grow_keys(r, c.growth);
  reference::DenseResult expected = reference::dense_attention(r.problem);
  if (c.accumulate) add_earlier_part(r, expected);
  const int pack = 1 << std::countr_zero(static_cast<unsigned>(s.num_heads_q / s.num_heads_kv));
  TileList tiles =
      schedule::build_tile_list(c.slices, s.seqlen_q, s.seqlen_k, {Traits::kBlockM / pack, Traits::kBlockN});
  std::optional<schedule::PartList> parts;
  std::optional<PartResults> results;
  if (c.part_steps > 0) {
    parts = schedule::cut_work_tiles(tiles, c.part_steps);
    ASSERT_FALSE(parts->tiles.empty());
    tiles = parts->list;
    results.emplace(*parts, s);
  }
  int32_t counters[2] = {0, 0};
  std::vector<float> max_logits(static_cast<size_t>(s.num_heads_q), -INFINITY);
  sm80::ForwardParams params{};
  params.q = r.q_view().data, params.k = r.k_view().data, params.v = r.v_view().data;
  params.out = r.out_view().data;
  params.q_row_stride = r.q_view().row_stride, params.q_head_stride = r.q_view().head_stride;
  params.k_row_stride = r.k_view().row_stride, params.k_head_stride = r.k_view().head_stride;
  params.v_row_stride = r.v_view().row_stride, params.v_head_stride = r.v_view().head_stride;
  params.out_row_stride = r.out_view().row_stride, params.out_head_stride = r.out_view().head_stride;
  params.lse = r.lse.data();
  params.max_logits = c.max_logits ? max_logits.data() : nullptr;
  params.sink = r.sink.empty() ? nullptr : r.sink.data();
  params.num_sinks = static_cast<int32_t>(c.sinks);
  params.sink_per_row = c.sink_layout == SinkLayout::kSsh;
  params.work_tiles = tiles.work_tiles.data();
  params.runs = tiles.runs.data();
  params.intervals = tiles.intervals.data();
  if (parts) {
    params.part_rows = parts->first_rows.data();
    params.part_out = results->out.data();
    params.part_lse = results->lse.data();
  }
  params.counters = counters;
  params.num_work_tiles = static_cast<int32_t>(tiles.work_tiles.size());
  params.num_groups = s.num_heads_q / pack;
  params.groups_per_section = (params.num_groups + 1) / 2;
  params.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  params.heads_per_kv = s.num_heads_q / s.num_heads_kv;
  params.num_heads_q = s.num_heads_q;
  params.head_dim = head_dim, params.head_dim_v = head_dim_v;
  params.softmax_scale = static_cast<float>(r.problem.scale);
  params.softcap = config.softcap;
  params.inner_scale = Traits::kSoftcap ? params.softmax_scale / params.softcap : 0.0f;
  params.exp_scale = (Traits::kSoftcap ? 1.0f : params.softmax_scale) * std::numbers::log2e_v<float>;
  params.rescale_threshold = c.max_logits && !Traits::kSoftcap ? 0.0f : 8.0f / params.exp_scale;
  params.accumulate = c.accumulate;
  params.out_type = c.out == DType::kFloat32 ? sm80::OutType::kFloat32 : sm80::OutType::kInput;
  std::optional<emulated_problem::LatePeer> peer;
  std::optional<emulated_problem::LocalKv> elsewhere;
  std::vector<std::function<void()>> events;
  if (c.keys == Keys::kLate) {
    events = peer.emplace(r.k, r.v).send();
    params.ready_flags = peer->params();
  } else if (c.keys == Keys::kLocalKv) {
    params.local_ranges = elsewhere.emplace(r.k, r.v).params();
    params.k_local = elsewhere->k_view(r.k_view()).data;
    params.v_local = elsewhere->v_view(r.v_view()).data;
  }
  const auto run = [&](int threads, size_t shared_bytes, const auto& kernel) {
    emulated::run({.blocks = 2,
                   .threads = static_cast<uint32_t>(threads),
                   .order = order,
                   .events = std::move(events),
                   .shared_bytes = shared_bytes},
                  [&] { kernel(params); });
  };
  if constexpr (kFloat32) {
    params.out_type = sm80::OutType::kFloat32;
    run(sm80::float32::kThreads, sizeof(sm80::float32::ForwardSmem<Traits::kDimQk>),
        sm80::float32::forward_kernel<Traits::kDimQk>);
  } else {
    constexpr size_t kSharedBytes = sizeof(sm80::ForwardSmem<Traits>);
    static_assert(kSharedBytes <= sm80::kTierKb[static_cast<int>(Traits::kTier)] * 1024);
    run(Traits::kThreads, kSharedBytes, sm80::forward_kernel<Traits>);
    EXPECT_EQ(counters[0], 0);
    EXPECT_EQ(counters[1], 0);
  }
  if (parts) results->combine(r, *parts);
  EXPECT_LT(support::relative_error(r.out, expected.out, s.num_heads_q, head_dim_v),
            tolerance<typename Traits::Element>(4e-3));
  expect_gaps_untouched(r.out, s.num_heads_q, head_dim_v);
  for (size_t i = 0; i < r.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      EXPECT_EQ(r.lse[i], expected.lse[i]) << i;
    } else {
      // 16 bits: of exp2.
      EXPECT_NEAR(r.lse[i], expected.lse[i], (kFloat32 ? 1e-5 : 1e-3) + 1e-5 * std::abs(expected.lse[i])) << i;
    }
  }
  for (size_t h = 0; c.max_logits && h < max_logits.size(); ++h) {
    EXPECT_NEAR(max_logits[h], expected.max_logits[h], 1e-4 * (1 + std::abs(expected.max_logits[h]))) << h;
  }
}

/// Every kind of mask and every way in which rows leave.
inline std::vector<ForwardCase> forward_cases() {
  return {
      {.name = "causal, packed heads",
       .shape = shape_of(150, 150, 4, 2),
       .slices = {AttnSlice::causal({0, 150}, {0, 150})}},
      {.name = "full, growing",
       .shape = shape_of(40, 330, 1, 1),
       .slices = {AttnSlice::full({0, 40}, {0, 330})},
       .growth = 60},
      {.name = "window, an earlier part",
       .shape = shape_of(140, 140, 6, 2),
       .slices = {{{0, 140}, {0, 140}, -50, 0}},
       .out = DType::kFloat32,
       .accumulate = true},
      {.name = "documents, sinks, maxima",
       .shape = shape_of(270, 300, 1, 1),
       .slices = small_documents(),
       .out = DType::kFloat32,
       .sinks = 2,
       .max_logits = true},
      {.name = "short, sinks of rows",
       .shape = shape_of(70, 130, 8, 1),
       .slices = short_slices(),
       .sinks = 1,
       .sink_layout = SinkLayout::kSsh},
      {.name = "parts", .shape = shape_of(21, 700, 4, 2), .slices = {{{0, 21}, {0, 700}, 50, 650}}, .part_steps = 2},
      {.name = "nothing", .shape = shape_of(100, 100, 2, 1), .slices = {}},
      {.name = "late keys",
       .shape = shape_of(140, 330, 1, 1),
       .slices = {AttnSlice::full({0, 140}, {0, 330})},
       .keys = Keys::kLate},
      {.name = "keys elsewhere",
       .shape = shape_of(40, 600, 2, 1),
       .slices = {AttnSlice::full({0, 40}, {0, 600})},
       .keys = Keys::kLocalKv},
  };
}

/// The `index`th alone, or in long runs all.
template <typename Traits>
void expect_cases_close(int head_dim, int head_dim_v, int first, int count) {
  const std::vector<ForwardCase> cases = forward_cases();
  if (support::is_long_run()) count = static_cast<int>(cases.size());
  for (int i = first; i < first + count; ++i) {
    expect_close<Traits>(cases[static_cast<size_t>(i) % cases.size()], head_dim, head_dim_v, emulated::order(i));
  }
}

}  // namespace tangram::test::emulated_sm80
