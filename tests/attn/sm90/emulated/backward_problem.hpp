// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward kernels, run by the emulator one after the other, against dense attention in float64.
#pragma once

#include <gtest/gtest.h>

#include <numbers>
#include <optional>
#include <string>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm90/backward/kernel.cuh"
#include "attn/sm90/backward/large_kernel.cuh"
#include "attn/sm90/backward/pre_posts.cuh"
#include "attn/sm90/emulated/backward_cases.hpp"
#include "attn/sm90/emulated/spread_rows.hpp"
#include "attn/sm90/emulated/tensor_maps.hpp"
#include "schedule/head_lists.hpp"
#include "schedule/mask_image.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/work_list.hpp"
#include "support/relative_error.hpp"

namespace tangram::test::emulated_backward {

using emulated::Order;
using emulated_problem::config_of;
using emulated_problem::expect_gaps_untouched;
using emulated_problem::has_class;
using emulated_problem::ImageMemory;
using emulated_problem::LatePeer;
using emulated_problem::LocalKv;
using sm90::backward::kBlockM;
using sm90::backward::kBlockN;
using sm90::backward::kStatsFloats;

/// Where a kernel finds its lists: where they were made, or in an image that may hold another mask the next time.
enum class Lists { kApart, kImage };

inline schedule::WorkList work_of(const RandomAttention& r, int multiprocessors, BackwardCalls calls,
                                  const schedule::AwaitedKeys& awaited_keys, bool by_rule = false) {
  const AttnShape& s = r.config.shape;
  std::vector<AttnSlice> keys_first;
  for (const AttnSlice& slice : r.slices) keys_first.push_back(schedule::transposed(slice));
  GpuModel gpu;
  gpu.multiprocessors = multiprocessors;
  return schedule::make_work_list(
      schedule::build_tile_list(keys_first, s.seqlen_k, s.seqlen_q, sm90::backward::kTileShape), r.slices, s, gpu,
      awaited_keys, {.calls = calls, .given = {}, .by_rule = by_rule});
}

/// The lists in an image of other bytes, and parameters that know nothing of the mask. Query tiles become as many as
/// the image has room for, as for the two small kernels.
inline ImageMemory put_into_image(sm90::backward::Params& params, schedule::WorkList& work, const AttnShape& shape,
                                  bool deterministic) {
  const bool all_see = work.covered_queries.empty();
  const schedule::ImageLayout layout(shape, {128, 128}, sm90::backward::kTileShape,
                                     {.max_documents = 5,
                                      .deterministic = deterministic,
                                      .passes = AttnPasses::kBackward,
                                      .allow_fully_masked_rows = !all_see});
  layout.check({}, work);
  ImageMemory image;
  std::byte* const begin = image.allocate(layout.bytes());
  EXPECT_LE(layout.write(begin, {}, work), layout.bytes());
  const auto end = static_cast<int32_t>(shape.seqlen_q);
  work.covered_queries.resize(static_cast<size_t>(layout.num_q_tiles()), ~uint64_t{0});
  work.q_tiles.resize(static_cast<size_t>(layout.num_q_tiles()), {end, end});
  params.work_tiles = reinterpret_cast<schedule::WorkTile*>(begin + layout.backward_work_tiles());
  params.runs = reinterpret_cast<TileRange*>(begin + layout.backward_runs());
  params.run_tiles = reinterpret_cast<schedule::RangeQueryTiles*>(begin + layout.run_tiles());
  params.q_tiles = reinterpret_cast<schedule::QueryTile*>(begin + layout.q_tiles());
  params.intervals = reinterpret_cast<RowInterval*>(begin + layout.intervals());
  params.covered_queries = all_see ? nullptr : reinterpret_cast<uint64_t*>(begin + layout.covered_queries());
  params.dq_order_segments = reinterpret_cast<schedule::DqOrderSegment*>(begin + layout.dq_order_segments());
  params.mask_info = reinterpret_cast<schedule::BackwardMaskInfo*>(begin + layout.mask_info());
  params.num_work_tiles = -1;
  params.walk = {!work.walk.descending, !work.walk.heads_innermost};
  params.zeroed_sums = !work.zeroed_sums;
  return image;
}

/// A kernel of one block for each head and query tile.
template <typename Kernel>
void run_edge(const sm90::backward::PrePostParams& params, const Order& order, const Kernel& kernel) {
  const auto blocks = static_cast<uint32_t>(std::max(params.num_heads_q * params.num_q_tiles, 1));
  emulated::run_one_by_one({blocks, sm90::backward::kPrePostThreads, order}, [&] { kernel(params); });
}

template <typename Traits>
void run_before(const sm90::backward::PrePostParams& params, const Order& order) {
  using Element = typename Traits::Element;
  if constexpr (Traits::kAnyDim) {
    run_edge(params, order, sm90::backward::before_any_dim_kernel<Element, Traits::kDimQk, Traits::kDimV>);
  } else {
    run_edge(params, order, sm90::backward::before_kernel<Element, Traits::kDimQk>);
  }
}
template <typename Traits>
void run_after(const sm90::backward::PrePostParams& params, const Order& order) {
  using Element = typename Traits::Element;
  if (params.num_q_tiles == 0) return;
  if constexpr (Traits::kAnyDim) {
    run_edge(params, order, sm90::backward::after_any_dim_kernel<Element, Traits::kDimQk>);
  } else {
    run_edge(params, order, sm90::backward::after_kernel<Element, Traits::kDimQk>);
  }
}

/// `num_accum_tiles`: of split_semaphore. `send` makes ready, for each kernel by itself, what comes while it runs.
template <typename Traits, typename Send>
void run_main(const sm90::backward::Params& params, int num_accum_tiles, uint32_t blocks, const Order& order,
              const Send& send) {
  using namespace sm90::backward;
  if constexpr (Traits::kShape.backward_split) {
    using Element = typename Traits::Element;
    using DvTraits =
        LargeTraits<Element, Traits::kDimQk, Traits::kDimV, Traits::kSoftcap, Traits::kDeterministic, LargePart::kDv>;
    using DkTraits =
        LargeTraits<Element, Traits::kDimQk, Traits::kDimV, Traits::kSoftcap, Traits::kDeterministic, LargePart::kDkDq>;
    static_assert(sizeof(Smem<DvTraits>) <= emulated::kSharedBytes && sizeof(Smem<DkTraits>) <= emulated::kSharedBytes);
    Params of_dv = params;
    ++of_dv.ticket;
    of_dv.split_semaphore += num_accum_tiles / 2;
    emulated::run({blocks, Traits::kThreads, order, 0, 0, send()}, [&] { large_kernel<DvTraits>(of_dv); });
    emulated::run({blocks, Traits::kThreads, order, 0, 0, send()}, [&] { large_kernel<DkTraits>(params); });
  } else if constexpr (Traits::kShape.backward_large) {
    using Large = LargeTraits<typename Traits::Element, Traits::kDimQk, Traits::kDimV, Traits::kSoftcap,
                              Traits::kDeterministic, LargePart::kAll>;
    static_assert(sizeof(Smem<Large>) <= emulated::kSharedBytes);
    emulated::run({blocks, Large::kThreads, order, 0, 0, send()}, [&] { large_kernel<Large>(params); });
  } else {
    emulated::run({blocks, Traits::kThreads, order, 0, 0, send()}, [&] { backward_kernel<Traits>(params); });
  }
}

/// Fills the parameters of the preprocess and postprocess kernels of `params`, whose lists must be set.
inline void fill_edge(sm90::backward::PrePostParams& pre_post, RandomAttention& r, const sm90::backward::Params& params,
                      float lse_factor) {
  pre_post.q_tiles = params.q_tiles;
  pre_post.out = r.out_view().data;
  pre_post.dout = r.dout_view().data;
  pre_post.lse = r.lse.data();
  pre_post.covered_queries = params.covered_queries;
  pre_post.dq = r.dq_view().data;
  pre_post.out_row_stride = r.out_view().row_stride;
  pre_post.out_head_stride = r.out_view().head_stride;
  pre_post.dout_row_stride = r.dout_view().row_stride;
  pre_post.dout_head_stride = r.dout_view().head_stride;
  pre_post.dq_row_stride = r.dq_view().row_stride;
  pre_post.dq_head_stride = r.dq_view().head_stride;
  pre_post.num_heads_q = r.config.shape.num_heads_q;
  pre_post.num_q_tiles = params.num_q_tiles;
  pre_post.softmax_scale = static_cast<float>(r.problem.scale);
  pre_post.lse_factor = lse_factor;
  pre_post.out_float32 = r.config.out_dtype == DType::kFloat32;
  pre_post.dq_type =
      r.config.grad_dtype == DType::kFloat32 ? sm90::backward::GradType::kFloat32 : sm90::backward::GradType::kInput;
  pre_post.zeroed_sums = params.zeroed_sums;
  pre_post.mask_info = params.mask_info;
  pre_post.head_dim = r.config.shape.head_dim;
  pre_post.head_dim_v = r.config.shape.head_dim_v;
}

inline void expect_gradients(const RandomAttention& r, const reference::DenseResult& expected, bool accumulate) {
  const AttnShape& s = r.config.shape;
  const auto check = [&](const HostTensor& got, std::vector<double> want, int heads, int dim) {
    for (double& value : want) value += accumulate ? 1.0 : 0.0;
    EXPECT_LT(support::relative_error(got, want, heads, dim), 5e-3);
    expect_gaps_untouched(got, heads, dim);
  };
  check(r.dq, expected.dq, s.num_heads_q, s.head_dim);
  check(r.dk, expected.dk, s.num_heads_kv, s.head_dim);
  check(r.dv, expected.dv, s.num_heads_kv, s.head_dim_v);
}

/// The lists of `work`, which must live as long.
inline sm90::backward::Params params_of(const schedule::WorkList& work) {
  sm90::backward::Params params{};
  params.work_tiles = work.work_tiles.data();
  params.runs = work.runs.data();
  params.run_tiles = work.run_tiles.data();
  params.q_tiles = work.q_tiles.data();
  params.intervals = work.intervals.data();
  params.covered_queries = work.covered_queries.empty() ? nullptr : work.covered_queries.data();
  params.dq_order_segments = work.dq_order_segments.data();
  params.num_work_tiles = static_cast<int32_t>(work.work_tiles.size());
  params.walk = work.walk;
  params.zeroed_sums = work.zeroed_sums;
  return params;
}

/// What gradients are before a call: ones where it adds to them.
inline void reset_gradients(RandomAttention& r, bool accumulate) {
  for (HostTensor* gradient : {&r.dq, &r.dk, &r.dv}) {
    gradient->fill(std::numeric_limits<float>::quiet_NaN());
    for (int64_t row = 0; row < gradient->rows() && accumulate; ++row) {
      for (int head = 0; head < gradient->heads(); ++head) {
        for (int d = 0; d < gradient->dim(); ++d) gradient->set(row, head, d, 1.0);
      }
    }
  }
}

/// Whether all queries of each tile see something, or none does, and some do not.
inline bool sees_whole_tiles(const schedule::WorkList& work) {
  return !work.covered_queries.empty() &&
         std::ranges::all_of(work.covered_queries, [](uint64_t word) { return word == 0 || word == ~uint64_t{0}; });
}

/// The three kernels over the lists of `params`, which are those of `work` wherever they lie. dk and dv are those of
/// `r` unless `params` has them; `delta` as PrePostParams has it; `send` as run_main.
template <typename Traits, typename Send>
void run_call(sm90::backward::Params params, const schedule::WorkList& work, RandomAttention& r, bool accumulate,
              uint32_t blocks, const Order& order, const float* delta, const Send& send) {
  constexpr auto kColumns = Traits::kAnyDim ? emulated::Columns::kAny : emulated::Columns::kPanels;
  const AttnShape& s = r.config.shape;
  const auto num_q_tiles = static_cast<int32_t>(work.q_tiles.size()) / work.num_masks;
  const auto scale = static_cast<float>(r.problem.scale);
  const size_t num_accum_tiles = static_cast<size_t>(schedule::accum_tile_tables(s.num_heads_q, work.num_masks)) *
                                 static_cast<size_t>(num_q_tiles);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // Memory in which a call computes begins with anything in it.
  std::vector<float> stats(num_accum_tiles * kStatsFloats, kNan),
      sums(num_accum_tiles * Traits::kAccumTileFloats, kNan);
  std::vector<float> accum_tiles(size_t(work.num_accum_tiles) * kBlockN * (Traits::kDimQk + Traits::kDimV), kNan);
  const int num_accum_tiles_of_work_tiles =
      Traits::kShape.backward_split ? 2 * work.num_accum_tiles : work.num_accum_tiles;
  std::vector<int32_t> dq_semaphore(num_accum_tiles * 2, -1),
      split_semaphore(size_t(num_accum_tiles_of_work_tiles), -1);
  int32_t ticket[2] = {-1, -1};
  sm90::backward::PrePostParams pre_post{};
  fill_edge(pre_post, r, params, Traits::kSoftcap ? -std::numbers::log2e_v<float> : -1.0f / scale);
  if (sees_whole_tiles(work)) params.covered_queries = nullptr;  // as buffers of blocks have it
  pre_post.always_zeroed = sm90::adds_dq_from_registers(Traits::kDimQk, Traits::kDimV, Traits::kDeterministic);
  pre_post.num_q_tiles = num_q_tiles;
  pre_post.heads_per_mask = work.num_masks == 1 ? 0 : s.num_heads_q / work.num_masks;
  pre_post.stats = stats.data();
  pre_post.dq_sums = sums.data();
  pre_post.ticket = ticket;
  pre_post.dq_semaphore = dq_semaphore.data();
  pre_post.split_semaphore = split_semaphore.data();
  pre_post.accumulate_dq = accumulate;
  if (delta != nullptr) pre_post.delta = delta, pre_post.out = nullptr, pre_post.out_float32 = false;
  pre_post.num_accum_tiles = num_accum_tiles_of_work_tiles;
  params.num_q_tiles = schedule::accum_tile_stride(num_q_tiles, pre_post.heads_per_mask);
  params.q_map = emulated::rows_first_map(r.q_view(), kBlockM, kColumns);
  params.dout_map = emulated::rows_first_map(r.dout_view(), kBlockM, kColumns);
  params.k_map = emulated::rows_first_map(r.k_view(), kBlockN, kColumns);
  params.v_map = emulated::rows_first_map(r.v_view(), kBlockN, kColumns);
  params.stats = stats.data();
  params.dq_sums = sums.data();
  params.accum_tiles = accum_tiles.data();
  params.split_semaphore = split_semaphore.data();
  params.ticket = ticket;
  params.dq_semaphore = dq_semaphore.data();
  if (params.places == nullptr) params.dk = r.dk_view().data, params.dv = r.dv_view().data;
  params.dk_row_stride = r.dk_view().row_stride;
  params.dv_row_stride = r.dv_view().row_stride;
  params.dk_head_stride = r.dk_view().head_stride;
  params.dv_head_stride = r.dv_view().head_stride;
  params.softmax_scale = scale;
  params.scale_log2 = scale * std::numbers::log2e_v<float>;
  params.cap_inner = Traits::kSoftcap ? scale / r.config.softcap : scale;
  params.cap_outer = (Traits::kSoftcap ? r.config.softcap : 1.0f) * std::numbers::log2e_v<float>;
  params.dkv_type = pre_post.dq_type;
  params.accumulate_dkv = accumulate;
  params.head_dim = s.head_dim;
  params.head_dim_v = s.head_dim_v;
  run_before<Traits>(pre_post, order);
  run_main<Traits>(params, num_accum_tiles_of_work_tiles, blocks, order, send);
  run_after<Traits>(pre_post, order);
}
template <typename Traits>
void run_call(const sm90::backward::Params& params, const schedule::WorkList& work, RandomAttention& r, bool accumulate,
              uint32_t blocks, const Order& order) {
  reset_gradients(r, accumulate);
  run_call<Traits>(params, work, r, accumulate, blocks, order, nullptr,
                   [] { return std::vector<std::function<void()>>(); });
}

template <typename Traits>
void expect_close(const Case& c, RandomAttention& r, const reference::DenseResult& expected, const Order& order,
                  Lists where) {
  SCOPED_TRACE(Traits::kDeterministic ? "deterministic" : "in any order");
  SCOPED_TRACE(where == Lists::kApart ? "lists apart" : "lists in an image");
  constexpr auto kColumns = Traits::kAnyDim ? emulated::Columns::kAny : emulated::Columns::kPanels;
  const AttnShape& s = r.config.shape;
  const HostTensor k = r.k.clone(), v = r.v.clone();
  LatePeer peer(r.k, r.v);
  schedule::WorkList work =
      work_of(r, c.multiprocessors, Traits::kDeterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault,
              c.late != LateKind::kNone ? peer.awaited_keys() : schedule::AwaitedKeys(), c.by_rule);
  sm90::backward::Params params = params_of(work);
  if (c.late != LateKind::kNone) params.ready_flags = peer.params();
  std::optional<LocalKv> elsewhere;
  if (c.elsewhere) {
    elsewhere.emplace(r.k, r.v);
    params.local_ranges = elsewhere->params();
    params.k_local_map = emulated::rows_first_map(elsewhere->k_view(r.k_view()), kBlockN, kColumns);
    params.v_local_map = emulated::rows_first_map(elsewhere->v_view(r.v_view()), kBlockN, kColumns);
  }
  ImageMemory image;
  if (where == Lists::kImage) image = put_into_image(params, work, s, Traits::kDeterministic);
  reset_gradients(r, c.accumulate);
  const DType final_rows = c.gradients == DType::kFloat32 ? DType::kBFloat16 : DType::kFloat32;
  SpreadRows dk(r.dk, final_rows), dv(r.dv, final_rows);
  const std::vector<uint32_t> places = SpreadRows::table(s.seqlen_k);
  if (c.places) {
    params.places = places.data();
    params.dk = dk.own(), params.dv = dv.own();
    params.dk_final = dk.final_rows(), params.dv_final = dv.final_rows();
    params.dk_others = dk.others(), params.dv_others = dv.others();
    params.final_type =
        final_rows == DType::kFloat32 ? sm90::backward::GradType::kFloat32 : sm90::backward::GradType::kInput;
  }
  const std::vector<float> delta = c.delta ? delta_of(r, expected) : std::vector<float>();
  run_call<Traits>(params, work, r, c.accumulate, c.blocks, order, c.delta ? delta.data() : nullptr,
                   [&]() -> std::vector<std::function<void()>> {
                     if (c.late == LateKind::kNone) return {};
                     return c.late == LateKind::kCome ? peer.send() : peer.fail();
                   });
  r.k = k.clone(), r.v = v.clone();
  if (c.late == LateKind::kNeverCome) return;  // it has come to its end
  if (c.places) dk.gather(), dv.gather();
  expect_gradients(r, expected, c.accumulate);
}

/// out and lse as a forward pass would have left them.
inline void fill_results(RandomAttention& r, const reference::DenseResult& expected) {
  const AttnShape& s = r.config.shape;
  for (size_t i = 0; i < r.lse.size(); ++i) {
    r.lse[i] = static_cast<float>(expected.lse[i]);
    const auto row = static_cast<int64_t>(i) / s.num_heads_q;
    const int head = static_cast<int>(i) % s.num_heads_q;
    for (int d = 0; d < s.head_dim_v; ++d) {
      r.out.set(row, head, d, expected.out[i * size_t(s.head_dim_v) + size_t(d)]);
    }
  }
}

/// With sums in any order, deterministic.
enum class Modes { kBoth, kFree, kDeterministic };

template <typename Traits, typename Deterministic>
void expect_close(const Case& c, int head_dim, int head_dim_v, const Order& order, Modes modes = Modes::kBoth) {
  RandomConfig config = config_of(c.shape, head_dim, head_dim_v, Traits::kSoftcap ? 3.0f : 0.0f, c.strided);
  config.grad_dtype = c.gradients;
  config.seqlen_sink = c.sinks;
  config.out_dtype = c.strided ? DType::kBFloat16 : DType::kFloat32;
  RandomAttention r = make_random(config, c.slices, 1);
  const reference::DenseResult expected = reference::dense_attention(r.problem);
  fill_results(r, expected);
  SCOPED_TRACE(testing::Message() << c.name << ", head dims " << head_dim << " and " << head_dim_v << ", order "
                                  << order.seed);
  // Images hold no lists for awaited keys.
  const Lists where = c.late != LateKind::kNone || order.seed % 2 == 0 ? Lists::kApart : Lists::kImage;
  const Lists other = c.late == LateKind::kNone && order.seed % 2 == 0 ? Lists::kImage : Lists::kApart;
  if (modes != Modes::kDeterministic) expect_close<Traits>(c, r, expected, order, where);
  if (modes != Modes::kFree) expect_close<Deterministic>(c, r, expected, order, other);
}

/// Both in long runs, else one of them.
inline Modes modes_in_turn(const Order& order, int head_dim) {
  if (support::is_long_run()) return Modes::kBoth;
  return (order.seed / 2 + static_cast<unsigned>(head_dim) / 32) % 2 == 0 ? Modes::kFree : Modes::kDeterministic;
}

/// Checks kernels for any head dimensions of a class; dimensions of the class itself in all cases, with softcap in long
/// runs. A quarter of the cases; other quarters run with softcap and with other dimensions. Long runs take all.
template <int kDimQk, int kDimV, bool kSoftcap>
void expect_any_dim_close(int head_dim, int head_dim_v, int first) {
  using Free = sm90::backward::AnyDimTraits<__nv_bfloat16, kDimQk, kDimV, kSoftcap, false>;
  using Deterministic = sm90::backward::AnyDimTraits<__nv_bfloat16, kDimQk, kDimV, kSoftcap, true>;
  ASSERT_TRUE(has_class(head_dim, head_dim_v, kDimQk, kDimV));
  std::vector<Case> all = any_dim_cases();
  if (head_dim == kDimQk && head_dim_v == kDimV && (!kSoftcap || support::is_long_run())) {
    for (Case& c : cases()) all.push_back(std::move(c));
  }
  emulated::in_orders(
      first, all,
      [&](const Case& c, const Order& order) {
        expect_close<Free, Deterministic>(c, head_dim, head_dim_v, order, modes_in_turn(order, kDimQk));
      },
      4);
}
template <int kDimQk, int kDimV>
void expect_any_dim_close(int head_dim, int head_dim_v) {
  const int first = head_dim / 8 + head_dim_v / 8;
  expect_any_dim_close<kDimQk, kDimV, false>(head_dim, head_dim_v, first);
  expect_any_dim_close<kDimQk, kDimV, true>(head_dim, head_dim_v, first + 1);
}

/// option_cases with dimensions of the class, softcap and determinism in turn; in long runs all of all.
template <int kDimQk, int kDimV>
void expect_options_close(const std::vector<std::pair<int, int>>& dims) {
  const auto expect = [&]<bool kSoftcap>(const Case& c, int head_dim, int head_dim_v, const Order& order) {
    using Free = sm90::backward::AnyDimTraits<__nv_bfloat16, kDimQk, kDimV, kSoftcap, false>;
    using Deterministic = sm90::backward::AnyDimTraits<__nv_bfloat16, kDimQk, kDimV, kSoftcap, true>;
    ASSERT_TRUE(has_class(head_dim, head_dim_v, kDimQk, kDimV));
    expect_close<Free, Deterministic>(c, head_dim, head_dim_v, order, modes_in_turn(order, kDimQk));
  };
  int index = 0;
  for (const Case& c : option_cases()) {
    for (size_t i = 0; i < (support::is_long_run() ? dims.size() : 1); ++i) {
      const auto [head_dim, head_dim_v] = dims[(static_cast<size_t>(index) + i) % dims.size()];
      const Order order = emulated::order(index);
      if (index % 2 == 0 || support::is_long_run()) expect.template operator()<false>(c, head_dim, head_dim_v, order);
      if (index % 2 == 1 || support::is_long_run()) expect.template operator()<true>(c, head_dim, head_dim_v, order);
    }
    ++index;
  }
}

}  // namespace tangram::test::emulated_backward
