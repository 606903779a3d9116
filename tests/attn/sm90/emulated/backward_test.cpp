// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The three kernels of the backward pass, run by the emulator, against dense attention in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <numbers>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm90/backward/edges.cuh"
#include "attn/sm90/backward/kernel.cuh"
#include "attn/sm90/emulated/tensor_maps.hpp"
#include "schedule/mask_image.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/work_list.hpp"
#include "support/relative_error.hpp"

namespace tangram::test {
namespace {

using emulated::Order;
using sm90::backward::kBlockM;
using sm90::backward::kBlockN;
using sm90::backward::kStatsFloats;

struct Case {
  const char* name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
  uint32_t blocks;
  int multiprocessors;  // that items are dealt for
};

AttnShape shape_of(int64_t rows, int64_t keys, int heads_q, int heads_kv) {
  return {rows, keys, heads_q, heads_kv, 0, 0, DType::kBFloat16};
}

std::vector<Case> cases() {
  const std::vector<AttnSlice> documents{AttnSlice::causal({0, 130}, {0, 130}), AttnSlice::full({130, 300}, {130, 300}),
                                         AttnSlice::causal({300, 333}, {300, 333}),
                                         AttnSlice::full({400, 640}, {340, 660})};
  return {
      {"full", shape_of(320, 300, 2, 1), {AttnSlice::full({0, 320}, {0, 300})}, 2, 132},
      {"sums zeroed before", shape_of(200, 1000, 2, 1), {AttnSlice::full({0, 200}, {0, 1000})}, 4, 132},
      {"one step", shape_of(64, 128, 1, 1), {AttnSlice::full({0, 64}, {0, 128})}, 1, 132},
      {"causal", shape_of(500, 500, 4, 2), {AttnSlice::causal({0, 500}, {0, 500})}, 3, 4},
      {"window", shape_of(600, 600, 4, 1), {{{0, 600}, {0, 600}, -150, 0}}, 3, 132},
      {"documents", shape_of(700, 700, 2, 2), documents, 3, 132},
      {"short",
       shape_of(70, 400, 8, 1),
       {AttnSlice::full({0, 5}, {3, 20}), AttnSlice::full({50, 60}, {100, 101})},
       2,
       132},
      {"nothing", shape_of(100, 100, 2, 1), {}, 1, 132},
      {"pieces", shape_of(640, 128, 8, 1), {AttnSlice::full({0, 640}, {0, 128})}, 5, 16},
  };
}

/// Where a kernel finds its lists: where they were made, or in an image that may hold another mask the next time.
enum class Lists { kApart, kImage };

schedule::WorkList work_of(const RandomAttention& r, int multiprocessors, BackwardCalls calls) {
  const AttnShape& s = r.config.shape;
  std::vector<AttnSlice> keys_first;
  for (const AttnSlice& slice : r.slices) keys_first.push_back(schedule::transposed(slice));
  GpuModel gpu;
  gpu.multiprocessors = multiprocessors;
  return schedule::make_work_list(
      schedule::build_tile_list(keys_first, s.seqlen_k, s.seqlen_q, sm90::backward::kTileShape), r.slices, s, gpu, {},
      {.calls = calls});
}

/// The lists in an image of other bytes, and parameters that know nothing of the mask. Query tiles become as many as
/// the image has room for, as for the two small kernels.
std::vector<std::byte> put_into_image(sm90::backward::Params& params, schedule::WorkList& work, const AttnShape& shape,
                                      bool deterministic) {
  const schedule::ImageLayout layout(shape, {128, 128}, sm90::backward::kTileShape,
                                     {.documents = 5, .deterministic = deterministic, .passes = AttnPasses::kBackward});
  layout.check({}, work);
  std::vector<std::byte> image(layout.bytes() + 256, std::byte{0x5a});
  std::byte* const begin = image.data() + (256 - reinterpret_cast<uintptr_t>(image.data()) % 256);
  EXPECT_LE(layout.write(begin, {}, work), layout.bytes());
  const auto end = static_cast<int32_t>(shape.seqlen_q);
  work.covered_queries.resize(static_cast<size_t>(layout.num_q_tiles()), ~uint64_t{0});
  work.q_tiles.resize(static_cast<size_t>(layout.num_q_tiles()), {end, end});
  params.items = reinterpret_cast<schedule::Item*>(begin + layout.backward_items());
  params.runs = reinterpret_cast<TileRun*>(begin + layout.backward_runs());
  params.run_tiles = reinterpret_cast<schedule::RunTiles*>(begin + layout.run_tiles());
  params.q_tiles = reinterpret_cast<schedule::QueryTile*>(begin + layout.q_tiles());
  params.intervals = reinterpret_cast<RowInterval*>(begin + layout.intervals());
  params.covered_queries = reinterpret_cast<uint64_t*>(begin + layout.covered_queries());
  params.turn_segments = reinterpret_cast<schedule::TurnSegment*>(begin + layout.turn_segments());
  params.facts = reinterpret_cast<schedule::BackwardFacts*>(begin + layout.facts());
  params.num_items = -1;
  params.walk = {!work.walk.descending, !work.walk.heads_inside};
  params.zeroed_sums = !work.zeroed_sums;
  return image;
}

/// Of the kernels before and after, around that of `params`.
sm90::backward::EdgeParams edge_params(const sm90::backward::Params& params, RandomAttention& r, float lse_factor,
                                       int32_t num_slabs) {
  const AttnShape& s = r.config.shape;
  sm90::backward::EdgeParams edge{};
  edge.q_tiles = params.q_tiles;
  edge.out = r.out.view().data;
  edge.dout = r.dout.view().data;
  edge.lse = r.lse.data();
  edge.stats = const_cast<float*>(params.stats);
  edge.dq_sums = params.dq_sums;
  edge.ticket = params.ticket;
  edge.turns = params.turns;
  edge.piece_turns = params.piece_turns;
  edge.covered_queries = params.covered_queries;
  edge.dq = r.dq.view().data;
  edge.out_row_stride = edge.dout_row_stride = edge.dq_row_stride = int64_t{s.num_heads_q} * s.head_dim;
  edge.out_head_stride = edge.dout_head_stride = edge.dq_head_stride = s.head_dim;
  edge.num_heads_q = s.num_heads_q;
  edge.num_q_tiles = params.num_q_tiles;
  edge.num_slabs = num_slabs;
  edge.softmax_scale = params.softmax_scale;
  edge.lse_factor = lse_factor;
  edge.zeroed_sums = params.zeroed_sums;
  edge.facts = params.facts;
  return edge;
}

template <int kHeadDim, bool kSoftcap, bool kDeterministic>
void expect_close(const Case& c, RandomAttention& r, const reference::DenseResult& expected, const Order& order,
                  Lists where) {
  using Traits = sm90::backward::Traits<__nv_bfloat16, kHeadDim, kSoftcap, kDeterministic>;
  SCOPED_TRACE(kDeterministic ? "deterministic" : "in any order");
  SCOPED_TRACE(where == Lists::kApart ? "lists apart" : "lists in an image");
  const AttnShape& s = r.config.shape;
  schedule::WorkList work =
      work_of(r, c.multiprocessors, kDeterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault);
  sm90::backward::Params params{};
  params.items = work.items.data();
  params.runs = work.runs.data();
  params.run_tiles = work.run_tiles.data();
  params.q_tiles = work.q_tiles.data();
  params.intervals = work.intervals.data();
  params.covered_queries = work.covered_queries.empty() ? nullptr : work.covered_queries.data();
  params.turn_segments = work.turn_segments.data();
  params.num_items = static_cast<int32_t>(work.items.size());
  params.walk = work.walk;
  params.zeroed_sums = work.zeroed_sums;
  std::vector<std::byte> image;
  if (where == Lists::kImage) image = put_into_image(params, work, s, kDeterministic);
  const auto scale = static_cast<float>(r.problem.scale);
  const size_t num_slabs = size_t(s.num_heads_q) * work.q_tiles.size();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (HostTensor* gradient : {&r.dq, &r.dk, &r.dv}) gradient->fill(kNan);
  // Memory in which a call computes begins with anything in it.
  std::vector<float> stats(num_slabs * kStatsFloats, kNan), sums(num_slabs * Traits::kSlabFloats, kNan);
  std::vector<float> slabs(size_t(work.num_slabs) * 2 * kBlockN * kHeadDim, kNan);
  std::vector<int32_t> turns(num_slabs * 2, 77), piece_turns(size_t(work.num_slabs), 77);
  int32_t ticket = 77;
  params.q_map = emulated::rows_first_map(r.q, kBlockM);
  params.dout_map = emulated::rows_first_map(r.dout, kBlockM);
  params.k_map = emulated::rows_first_map(r.k, kBlockN);
  params.v_map = emulated::rows_first_map(r.v, kBlockN);
  params.stats = stats.data();
  params.dq_sums = sums.data();
  params.slabs = slabs.data();
  params.piece_turns = piece_turns.data();
  params.ticket = &ticket;
  params.turns = turns.data();
  params.dk = r.dk.view().data;
  params.dv = r.dv.view().data;
  params.dk_row_stride = params.dv_row_stride = int64_t{s.num_heads_kv} * kHeadDim;
  params.dk_head_stride = params.dv_head_stride = kHeadDim;
  params.num_q_tiles = static_cast<int32_t>(work.q_tiles.size());
  params.softmax_scale = scale;
  params.scale_log2 = scale * std::numbers::log2e_v<float>;
  params.cap_inner = kSoftcap ? scale / r.config.softcap : scale;
  params.cap_outer = (kSoftcap ? r.config.softcap : 1.0f) * std::numbers::log2e_v<float>;
  const sm90::backward::EdgeParams edge =
      edge_params(params, r, kSoftcap ? -std::numbers::log2e_v<float> : -1 / scale, work.num_slabs);
  const uint32_t edge_blocks = std::max(static_cast<uint32_t>(num_slabs), 1u);
  constexpr uint32_t kEdgeThreads = sm90::backward::kEdgeThreads;
  emulated::run_one_by_one({edge_blocks, kEdgeThreads, order},
                           [&] { sm90::backward::before_kernel<__nv_bfloat16, kHeadDim>(edge); });
  emulated::run({c.blocks, Traits::kThreads, order}, [&] { sm90::backward::backward_kernel<Traits>(params); });
  emulated::run_one_by_one({edge_blocks, kEdgeThreads, order},
                           [&] { sm90::backward::after_kernel<__nv_bfloat16, kHeadDim>(edge); });
  EXPECT_LT(support::relative_error(r.dq, expected.dq, s.num_heads_q, kHeadDim), 5e-3);
  EXPECT_LT(support::relative_error(r.dk, expected.dk, s.num_heads_kv, kHeadDim), 5e-3);
  EXPECT_LT(support::relative_error(r.dv, expected.dv, s.num_heads_kv, kHeadDim), 5e-3);
}

template <int kHeadDim, bool kSoftcap>
void expect_close(const Case& c, const Order& order) {
  RandomConfig config;
  config.shape = c.shape;
  config.shape.head_dim = config.shape.head_dim_v = kHeadDim;
  config.softcap = kSoftcap ? 3.0f : 0.0f;
  config.out_dtype = config.grad_dtype = DType::kBFloat16;
  RandomAttention r = make_random(config, c.slices, 1);
  const reference::DenseResult expected = reference::dense_attention(r.problem);
  for (size_t i = 0; i < expected.out.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / (c.shape.num_heads_q * kHeadDim);
    r.out.set(row, static_cast<int>(i) / kHeadDim % c.shape.num_heads_q, static_cast<int>(i) % kHeadDim,
              static_cast<float>(expected.out[i]));
  }
  std::copy(expected.lse.begin(), expected.lse.end(), r.lse.begin());
  SCOPED_TRACE(testing::Message() << c.name << ", head_dim " << kHeadDim << ", order " << order.seed);
  const Lists where = order.seed % 2 == 0 ? Lists::kApart : Lists::kImage;
  const Lists other = order.seed % 2 == 0 ? Lists::kImage : Lists::kApart;
  expect_close<kHeadDim, kSoftcap, false>(c, r, expected, order, where);
  expect_close<kHeadDim, kSoftcap, true>(c, r, expected, order, other);
}

template <int kHeadDim, bool kSoftcap>
void expect_all_close(int first) {
  emulated::in_orders(first, cases(),
                      [](const Case& c, const Order& order) { expect_close<kHeadDim, kSoftcap>(c, order); });
}

TEST(Sm90EmulatedBackward, AgreesWithFloat64HeadDim64) { expect_all_close<64, false>(0); }
TEST(Sm90EmulatedBackward, AgreesWithFloat64HeadDim128) { expect_all_close<128, false>(1); }
TEST(Sm90EmulatedBackward, AgreesWithFloat64WithSoftcapHeadDim64) { expect_all_close<64, true>(2); }
TEST(Sm90EmulatedBackward, AgreesWithFloat64WithSoftcapHeadDim128) { expect_all_close<128, true>(0); }

}  // namespace
}  // namespace tangram::test
