// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward kernels of backend sm80, run by the emulator one after the other, against dense attention in float64.
#pragma once

#include <gtest/gtest.h>

#include <numbers>
#include <optional>
#include <utility>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm80/backward/kernel.cuh"
#include "attn/sm80/backward/pre_posts.cuh"
#include "attn/sm80/emulated/problem.hpp"
#include "attn/sm80/float32/backward.cuh"
#include "schedule/head_lists.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/work_list.hpp"
#include "support/relative_error.hpp"

namespace tangram::test::emulated_sm80 {

struct BackwardCase {
  const char* name;
  AttnShape shape;  // without head dimensions
  std::vector<AttnSlice> slices;
  uint32_t blocks;
  int multiprocessors;  // that work tiles are scheduled for
  DType gradients = DType::kBFloat16;
  bool accumulate = false;  // gradients hold 1 before
  int64_t sinks = 0;
  bool delta = false;  // given, in the place of out
  Keys keys = Keys::kThere;
  bool scattered = false;  // rows of dk and dv go to several tensors, and sizes of the mask lie in memory
};

/// Where the rows of dk and dv go: by turns to the tensors of the call, final ones and another rank's, from the last
/// on.
struct ScatteredRows {
  HostTensor dk_final, dv_final, dk_other, dv_other;
  std::vector<uint32_t> of_key;
  void *dk_others[1], *dv_others[1];

  explicit ScatteredRows(const RandomAttention& r)
      : dk_final(r.dk.clone()), dv_final(r.dv.clone()), dk_other(r.dk.clone()), dv_other(r.dv.clone()) {
    dk_others[0] = dk_other.view().data, dv_others[0] = dv_other.view().data;
    for (int64_t key = 0; key < r.dk.rows(); ++key) {
      of_key.push_back(dkv_scatter_target(static_cast<uint32_t>(key % 3), r.dk.rows() - 1 - key));
    }
  }
  void gather(RandomAttention& r) const {
    const auto gather_rows = [&](HostTensor& own, const HostTensor& final, const HostTensor& other) {
      const HostTensor stored = own.clone();
      const HostTensor* const tensors[] = {&stored, &final, &other};
      for (int64_t key = 0; key < own.rows(); ++key) {
        for (int head = 0; head < own.heads(); ++head) {
          for (int d = 0; d < own.dim(); ++d)
            own.set(key, head, d, tensors[key % 3]->at(own.rows() - 1 - key, head, d));
        }
      }
    };
    gather_rows(r.dk, dk_final, dk_other);
    gather_rows(r.dv, dv_final, dv_other);
  }
};

/// Every kind of mask and every way in which gradients leave.
inline std::vector<BackwardCase> backward_cases() {
  return {
      {"causal, heads of a key head", shape_of(150, 150, 4, 2), {AttnSlice::causal({0, 150}, {0, 150})}, 3, 4},
      {.name = "window, accumulated",
       .shape = shape_of(140, 140, 2, 1),
       .slices = {{{0, 140}, {0, 140}, -50, 0}},
       .blocks = 2,
       .multiprocessors = 132,
       .gradients = DType::kFloat32,
       .accumulate = true},
      {.name = "documents, sinks",
       .shape = shape_of(270, 300, 1, 1),
       .slices = small_documents(),
       .blocks = 3,
       .multiprocessors = 132,
       .gradients = DType::kFloat32,
       .sinks = 2},
      {.name = "short, delta",
       .shape = shape_of(70, 130, 2, 1),
       .slices = short_slices(),
       .blocks = 2,
       .multiprocessors = 132,
       .delta = true},
      {"nothing", shape_of(100, 100, 2, 1), {}, 1, 132},
      {"pieces of two and three heads", shape_of(100, 140, 5, 1), {AttnSlice::causal({0, 100}, {0, 140})}, 3, 4},
      {.name = "late keys, rows to several tensors",
       .shape = shape_of(70, 330, 2, 1),
       .slices = {AttnSlice::full({0, 70}, {0, 330})},
       .blocks = 3,
       .multiprocessors = 132,
       .keys = Keys::kLate,
       .scattered = true},
      {.name = "keys elsewhere",
       .shape = shape_of(40, 600, 1, 1),
       .slices = {AttnSlice::full({0, 40}, {0, 600})},
       .blocks = 3,
       .multiprocessors = 132,
       .keys = Keys::kLocalKv},
  };
}

template <typename Traits>
schedule::WorkList work_of(const RandomAttention& r, const BackwardCase& c, bool deterministic) {
  const AttnShape& s = r.config.shape;
  GpuModel gpu;
  gpu.multiprocessors = c.multiprocessors;
  const TileList tiles =
      schedule::transposed_tile_list(r.slices, s.seqlen_q, s.seqlen_k, {Traits::kKeys, Traits::kQueries, true});
  return schedule::make_work_list(tiles, r.slices, s, gpu, {},
                                  {.calls = deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault});
}

/// out and lse as a forward pass would have left them, gradients as they are before a call; returns delta.
inline std::vector<float> fill_results(RandomAttention& r, const reference::DenseResult& expected, bool accumulate) {
  const AttnShape& s = r.config.shape;
  std::vector<float> delta(r.lse.size());
  for (size_t i = 0; i < r.lse.size(); ++i) {
    r.lse[i] = static_cast<float>(expected.lse[i]);
    const auto row = static_cast<int64_t>(i) / s.num_heads_q;
    const int head = static_cast<int>(i) % s.num_heads_q;
    double sum = 0;
    for (int d = 0; d < s.head_dim_v; ++d) {
      const double out = expected.out[i * size_t(s.head_dim_v) + size_t(d)];
      r.out.set(row, head, d, static_cast<float>(out));
      sum += out * r.dout.at(row, head, d);
    }
    delta[i] = static_cast<float>(sum);
  }
  for (HostTensor* gradient : {&r.dq, &r.dk, &r.dv}) {
    gradient->fill(std::numeric_limits<float>::quiet_NaN());
    for (int64_t row = 0; row < gradient->rows() && accumulate; ++row) {
      for (int head = 0; head < gradient->heads(); ++head) {
        for (int d = 0; d < gradient->dim(); ++d) gradient->set(row, head, d, 1.0f);
      }
    }
  }
  return delta;
}

inline void expect_gradients(const RandomAttention& r, const reference::DenseResult& expected, bool accumulate,
                             double tolerance = 5e-3) {
  const AttnShape& s = r.config.shape;
  const auto check = [&](const HostTensor& got, std::vector<double> want, int heads, int dim) {
    for (double& value : want) value += accumulate ? 1.0 : 0.0;
    EXPECT_LT(support::relative_error(got, want, heads, dim), tolerance);
    if (!accumulate) expect_gaps_untouched(got, heads, dim);
  };
  check(r.dq, expected.dq, s.num_heads_q, s.head_dim);
  check(r.dk, expected.dk, s.num_heads_kv, s.head_dim);
  check(r.dv, expected.dv, s.num_heads_kv, s.head_dim_v);
}

/// The three kernels of a call.
template <typename Traits>
void run_backward(RandomAttention& r, const BackwardCase& c, const schedule::WorkList& work, const float* delta,
                  bool deterministic, const emulated::Order& order) {
  namespace kernels = sm80::backward;
  using Element = typename Traits::Element;
  const AttnShape& s = r.config.shape;
  const int32_t heads_per_mask = work.num_masks == 1 ? 0 : s.num_heads_q / work.num_masks;
  const auto num_q_tiles = static_cast<int32_t>(work.q_tiles.size()) / work.num_masks;  // of each mask
  const size_t tiles = static_cast<size_t>(num_q_tiles * schedule::accum_tile_tables(s.num_heads_q, work.num_masks));
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // Memory in which a call computes begins with anything in it.
  std::vector<kernels::RowStatistics> stats(tiles * sm80::kStepQueries, {kNan, kNan});
  std::vector<float4> sums(tiles * Traits::kDqTileFloats / 4, float4{kNan, kNan, kNan, kNan});
  std::vector<float4> accum_tiles(size_t(work.num_accum_tiles) * Traits::kAccumTileFloats / 4,
                                  float4{kNan, kNan, kNan, kNan});
  std::vector<int32_t> dq_semaphore(tiles, -1), split_semaphore(size_t(work.num_accum_tiles), -1);
  int32_t ticket = -1;
  const kernels::GradType type =
      r.dq.dtype() == DType::kFloat32 ? kernels::GradType::kFloat32 : kernels::GradType::kInput;
  const auto scale = static_cast<float>(r.problem.scale);

  kernels::PrePostParams pre_post{};
  pre_post.q_tiles = work.q_tiles.data();
  pre_post.covered_queries = work.covered_queries.empty() ? nullptr : work.covered_queries.data();
  pre_post.out = delta != nullptr ? nullptr : r.out_view().data;
  pre_post.dout = r.dout_view().data;
  pre_post.lse = r.lse.data();
  pre_post.delta = delta;
  pre_post.stats = stats.data();
  pre_post.dq_sums = reinterpret_cast<float*>(sums.data());
  pre_post.split_semaphore = split_semaphore.data();
  pre_post.dq_semaphore = dq_semaphore.data();
  pre_post.ticket = &ticket;
  pre_post.dq = r.dq_view().data;
  pre_post.out_row_stride = r.out_view().row_stride, pre_post.out_head_stride = r.out_view().head_stride;
  pre_post.dout_row_stride = r.dout_view().row_stride, pre_post.dout_head_stride = r.dout_view().head_stride;
  pre_post.dq_row_stride = r.dq_view().row_stride, pre_post.dq_head_stride = r.dq_view().head_stride;
  pre_post.num_heads_q = s.num_heads_q;
  pre_post.num_q_tiles = num_q_tiles;
  pre_post.heads_per_mask = heads_per_mask;
  pre_post.num_accum_tiles = work.num_accum_tiles;
  pre_post.head_dim = s.head_dim, pre_post.head_dim_v = s.head_dim_v;
  pre_post.softmax_scale = scale;
  pre_post.out_float32 = r.out.dtype() == DType::kFloat32;
  pre_post.dq_type = type;
  pre_post.accumulate_dq = c.accumulate;

  kernels::Params params{};
  params.q = r.q_view().data, params.k = r.k_view().data, params.v = r.v_view().data;
  params.dout = r.dout_view().data;
  params.work_tiles = work.work_tiles.data();
  params.runs = work.runs.data();
  params.run_tiles = work.run_tiles.data();
  params.q_tiles = work.q_tiles.data();
  params.intervals = work.intervals.data();
  params.covered_queries = pre_post.covered_queries;
  params.dq_order_segments = work.dq_order_segments.data();
  params.stats = stats.data();
  params.dq_sums = pre_post.dq_sums;
  params.accum_tiles = reinterpret_cast<float*>(accum_tiles.data());
  params.split_semaphore = split_semaphore.data();
  params.dq_semaphore = dq_semaphore.data();
  params.ticket = &ticket;
  params.dk = r.dk_view().data, params.dv = r.dv_view().data;
  params.q_row_stride = r.q_view().row_stride, params.q_head_stride = r.q_view().head_stride;
  params.k_row_stride = r.k_view().row_stride, params.k_head_stride = r.k_view().head_stride;
  params.v_row_stride = r.v_view().row_stride, params.v_head_stride = r.v_view().head_stride;
  params.dout_row_stride = r.dout_view().row_stride, params.dout_head_stride = r.dout_view().head_stride;
  params.dk_row_stride = r.dk_view().row_stride, params.dk_head_stride = r.dk_view().head_stride;
  params.dv_row_stride = r.dv_view().row_stride, params.dv_head_stride = r.dv_view().head_stride;
  params.num_work_tiles = static_cast<int32_t>(work.work_tiles.size());
  params.num_q_tiles = schedule::accum_tile_stride(num_q_tiles, heads_per_mask);
  params.head_dim = s.head_dim, params.head_dim_v = s.head_dim_v;
  params.softmax_scale = scale;
  params.scale_log2 = scale * std::numbers::log2e_v<float>;
  params.cap_inner = Traits::kSoftcap ? scale / r.config.softcap : scale;
  params.cap_outer = (Traits::kSoftcap ? r.config.softcap : 1.0f) * std::numbers::log2e_v<float>;
  params.dkv_type = type;
  params.accumulate_dkv = c.accumulate;
  params.deterministic = deterministic;
  params.walk = work.walk;
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
  std::optional<ScatteredRows> rows;
  const schedule::BackwardMaskInfo mask_info{params.num_work_tiles, work.walk, true};
  if (c.scattered) {
    rows.emplace(r);
    params.places = rows->of_key.data();
    params.dk_final = rows->dk_final.view().data, params.dv_final = rows->dv_final.view().data;
    params.dk_others = rows->dk_others, params.dv_others = rows->dv_others;
    params.final_type = type;
    params.mask_info = &mask_info;
    params.num_work_tiles = 0;
    params.walk = {};
    pre_post.has_empty_tiles = true;
  }

  const uint32_t edge_blocks = std::max(static_cast<uint32_t>(num_q_tiles * s.num_heads_q), 1u);
  const auto run = [&](uint32_t blocks, const auto& kernel, const auto& arguments, size_t shared_bytes) {
    emulated::run({.blocks = blocks,
                   .threads = kernels::kThreads,
                   .order = order,
                   .events = std::exchange(events, {}),
                   .shared_bytes = shared_bytes},
                  [&] { kernel(arguments); });
  };
  std::vector<std::function<void()>> of_main = std::exchange(events, {});
  run(edge_blocks, kernels::before_kernel<Element, Traits::kDimQk>, pre_post, 1024);
  events = std::move(of_main);
  if constexpr (std::is_same_v<Element, float>) {
    constexpr int kDim = Traits::kDimQk;
    run(c.blocks, sm80::float32::backward_kernel<kDim, Traits::kSoftcap>, params,
        sizeof(sm80::float32::BackwardSmem<kDim>));
    if (num_q_tiles > 0) run(edge_blocks, sm80::float32::after_kernel<kDim>, pre_post, 1024);
  } else {
    constexpr size_t kSharedBytes = sizeof(kernels::Smem<Traits>);
    static_assert(kSharedBytes <= sm80::kTierKb[static_cast<int>(Traits::kTier)] * 1024);
    run(c.blocks, kernels::backward_kernel<Traits>, params, kSharedBytes);
    if (num_q_tiles > 0) run(edge_blocks, kernels::after_kernel<Element, Traits::kDimQk>, pre_post, 1024);
  }
  if (rows) rows->gather(r);
}

template <typename Traits>
void expect_close(const BackwardCase& c, int head_dim, int head_dim_v, const emulated::Order& order,
                  bool deterministic) {
  SCOPED_TRACE(testing::Message() << c.name << ", head dims " << head_dim << " and " << head_dim_v << ", order "
                                  << order.seed << (deterministic ? ", deterministic" : ", in any order"));
  RandomConfig config = config_of(c.shape, head_dim, head_dim_v, Traits::kSoftcap ? 3.0f : 0.0f);
  config.shape.dtype = dtype_of<typename Traits::Element>();
  config.grad_dtype = c.gradients == DType::kFloat32 ? c.gradients : config.shape.dtype;
  config.out_dtype = c.gradients;
  if (config.out_dtype != DType::kFloat32) config.out_dtype = config.shape.dtype;
  config.seqlen_sink = c.sinks;
  RandomAttention r = make_random(config, c.slices, 1);
  if constexpr (!std::is_same_v<typename Traits::Element, float>) {
    ASSERT_EQ(sm80::find_shape_class(head_dim, head_dim_v), &sm80::shape_class(Traits::kDimQk, Traits::kDimV));
  }
  const reference::DenseResult expected = reference::dense_attention(r.problem);
  const std::vector<float> delta = fill_results(r, expected, c.accumulate);
  const schedule::WorkList work = work_of<Traits>(r, c, deterministic);
  run_backward<Traits>(r, c, work, c.delta ? delta.data() : nullptr, deterministic, order);
  expect_gradients(r, expected, c.accumulate, tolerance<typename Traits::Element>(5e-3));
}

/// `count` cases from the `first` on, in any order and deterministic by turns; in long runs all of both.
template <typename Traits>
void expect_backward_close(int head_dim, int head_dim_v, int first, int count) {
  const std::vector<BackwardCase> cases = backward_cases();
  if (support::is_long_run()) count = static_cast<int>(cases.size());
  for (int i = first; i < first + count; ++i) {
    for (const bool deterministic : {false, true}) {
      if (!support::is_long_run() && deterministic != ((i + head_dim / 64) % 2 == 0)) continue;
      expect_close<Traits>(cases[static_cast<size_t>(i) % cases.size()], head_dim, head_dim_v, emulated::order(i),
                           deterministic);
    }
  }
}

}  // namespace tangram::test::emulated_sm80
