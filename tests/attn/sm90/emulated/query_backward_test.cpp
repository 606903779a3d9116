// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward kernels for gathered keys, run by the emulator, against float64.
#include <bit>
#include <random>

#include "attn/cpu/random_heads.hpp"
#include "attn/sm90/emulated/backward_problem.hpp"
#include "attn/sm90/query_backward/edges.cuh"
#include "attn/sm90/query_backward/kernel.cuh"

namespace tangram::test {
namespace {

namespace query = sm90::query_backward;
using emulated::Order;
using emulated_problem::config_of;
using emulated_problem::shape_of;

struct Case {
  const char* name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
  uint32_t blocks;  // of the grid
  DType gradients = DType::kBFloat16;
  bool strided = false;
  bool delta = false;  // given, in the place of out
  int32_t groups_per_section = 1;
};

/// Blocks at random, of a fifth of the rows none.
std::vector<AttnSlice> blocks_of(const AttnShape& shape, int64_t block, double share, unsigned seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution sees(share);
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < shape.seqlen_q; q += block) {
    for (int64_t k = 0; k < shape.seqlen_k && q / block % 5 != 1; k += block) {
      if (sees(random)) slices.push_back(AttnSlice::full({q, q + block}, {k, k + block}));
    }
  }
  return slices;
}

/// Those of them below the diagonal, whose blocks are causal.
std::vector<AttnSlice> causal_blocks_of(const AttnShape& shape, int64_t block, double share, unsigned seed) {
  std::vector<AttnSlice> slices;
  for (const AttnSlice& slice : blocks_of(shape, block, share, seed)) {
    if (slice.k_range.end <= slice.q_range.begin) slices.push_back(slice);
  }
  for (int64_t q = 0; q < shape.seqlen_q; q += block) {
    if (q + block <= shape.seqlen_k) slices.push_back(AttnSlice::causal({q, q + block}, {q, q + block}));
  }
  return slices;
}

std::vector<Case> cases() {
  const AttnShape eight = shape_of(160, 512, 8, 1), two = shape_of(128, 320, 16, 2), four = shape_of(192, 384, 8, 2),
                  one = shape_of(256, 256, 2, 2), causal = shape_of(272, 272, 8, 1), ragged = shape_of(75, 333, 8, 1);
  return {
      {"blocks of 16", eight, blocks_of(eight, 16, 0.3, 1), 2},
      {"blocks of 16, two key heads", two, blocks_of(two, 16, 0.5, 2), 3, DType::kFloat32, true, false, 2},
      {"blocks of 32", eight, blocks_of(eight, 32, 0.4, 3), 2, DType::kBFloat16, true},
      {"blocks of 64, four heads a key head", four, blocks_of(four, 64, 0.4, 4), 2, DType::kBFloat16, false, true},
      {"blocks of 128, one head a key head", one, {AttnSlice::full({0, 128}, {128, 256})}, 2},
      {"rows of a tile, keys of a group that end early",
       ragged,
       {AttnSlice::full({0, 16}, {16, 48}), AttnSlice::full({0, 16}, {64, 176}), AttnSlice::full({48, 75}, {0, 320})},
       2},
      {"nothing", ragged, {}, 1},
      {"causal", causal, {AttnSlice::causal({0, 272}, {0, 272})}, 2},
      {"causal blocks of 16", causal, causal_blocks_of(causal, 16, 0.3, 6), 3},
      {"causal blocks of 64, four heads a key head", four, causal_blocks_of(four, 64, 0.5, 7), 2},
      {"rows that see parts of groups alone", shape_of(48, 64, 8, 1), {AttnSlice::inv_causal({0, 48}, {16, 64})}, 1},
  };
}

query::EdgeParams edge_of(RandomAttention& r, int pack) {
  const AttnShape& s = r.config.shape;
  query::EdgeParams edge{};
  edge.out = r.out_view().data;
  edge.dout = r.dout_view().data;
  edge.lse = r.lse.data();
  edge.dk = r.dk_view().data;
  edge.dv = r.dv_view().data;
  edge.out_row_stride = r.out_view().row_stride, edge.out_head_stride = r.out_view().head_stride;
  edge.dout_row_stride = r.dout_view().row_stride, edge.dout_head_stride = r.dout_view().head_stride;
  edge.dk_row_stride = r.dk_view().row_stride, edge.dk_head_stride = r.dk_view().head_stride;
  edge.dv_row_stride = r.dv_view().row_stride, edge.dv_head_stride = r.dv_view().head_stride;
  edge.seqlen_q = static_cast<int32_t>(s.seqlen_q), edge.seqlen_k = static_cast<int32_t>(s.seqlen_k);
  edge.num_heads_q = s.num_heads_q, edge.num_heads_kv = s.num_heads_kv;
  const int64_t rows = query::kRows / pack;
  edge.num_tiles = static_cast<int32_t>((s.seqlen_q + rows - 1) / rows);
  edge.num_head_groups = s.num_heads_q / pack;
  edge.num_key_groups = static_cast<int32_t>((s.seqlen_k + query::kGroupKeys - 1) / query::kGroupKeys);
  edge.pack_log2 = std::countr_zero(static_cast<unsigned>(pack));
  edge.softmax_scale = static_cast<float>(r.problem.scale);
  edge.out_float32 = r.config.out_dtype == DType::kFloat32;
  edge.dkv_type =
      r.config.grad_dtype == DType::kFloat32 ? sm90::backward::GradType::kFloat32 : sm90::backward::GradType::kInput;
  return edge;
}

/// One mask, or as many as there are groups of heads.
schedule::GroupList list_of(const std::vector<std::vector<AttnSlice>>& masks, const AttnShape& s) {
  const int pack = s.num_heads_q / s.num_heads_kv;
  std::vector<schedule::GroupList> lists;
  for (const std::vector<AttnSlice>& slices : masks) {
    std::optional<schedule::GroupList> list = schedule::group_items(
        schedule::build_tile_list(slices, s.seqlen_q, s.seqlen_k, {query::kRows / pack, query::kKeys}));
    EXPECT_TRUE(list.has_value());
    lists.push_back(std::move(list).value_or(schedule::GroupList()));
  }
  if (lists.size() == 1) return lists[0];
  return schedule::join_groups(lists, s.num_heads_kv / static_cast<int>(lists.size()));
}

template <typename Element, int kHeadDim>
void run_call(RandomAttention& r, const schedule::GroupList& list, const Case& c, const float* delta,
              const Order& order) {
  using Traits = query::Traits<Element, kHeadDim>;
  const AttnShape& s = r.config.shape;
  const int pack = s.num_heads_q / s.num_heads_kv;
  const bool named = !list.items.empty() && list.items[0].head_group >= 0;
  query::EdgeParams edge = edge_of(r, pack);
  const auto num_sums = static_cast<size_t>(s.num_heads_kv * edge.num_key_groups) * query::kGroupFloats<kHeadDim>;
  // Memory in which a call computes begins with anything in it.
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> sums(2 * num_sums, kNan);
  const auto tiles = static_cast<uint32_t>(edge.num_tiles * edge.num_head_groups);
  std::vector<float> stats(size_t{tiles} * query::kStatsFloats, kNan);
  int32_t ticket = -1;
  edge.stats = stats.data();
  edge.dk_sums = sums.data();
  edge.ticket = &ticket;
  if (delta != nullptr) edge.delta = delta, edge.out = nullptr, edge.out_float32 = false;
  query::Params params{};
  constexpr auto kPanels = emulated::Columns::kPanels;
  params.q_map = emulated::heads_first_map(r.q_view(), query::kRows / pack, pack, kHeadDim / 64, kPanels);
  params.dout_map = emulated::heads_first_map(r.dout_view(), query::kRows / pack, pack, kHeadDim / 64, kPanels);
  for (const int large : {0, 1}) {
    params.maps[0][large] = emulated::rows_first_map(r.k_view(), large ? 64 : 16, kPanels, 1);
    params.maps[1][large] = emulated::rows_first_map(r.v_view(), large ? 64 : 16, kPanels, 1);
  }
  params.items = list.items.data();
  params.groups = list.groups.data();
  params.masks = list.masks.empty() ? nullptr : list.masks[0].keys;
  params.stats = stats.data();
  params.dk_sums = sums.data();
  params.dv_sums = sums.data() + num_sums;
  params.ticket = &ticket;
  params.dq = r.dq_view().data;
  params.dq_row_stride = r.dq_view().row_stride, params.dq_head_stride = r.dq_view().head_stride;
  params.num_items = static_cast<int32_t>(list.items.size());
  params.num_tiles = edge.num_tiles;
  params.num_head_groups = named ? 1 : edge.num_head_groups;
  params.groups_per_section = named ? 1 : c.groups_per_section;
  params.pack_log2 = edge.pack_log2;
  params.heads_per_kv = pack;
  params.num_key_groups = edge.num_key_groups;
  params.softmax_scale = edge.softmax_scale;
  params.scale_log2 = edge.softmax_scale * std::numbers::log2e_v<float>;
  params.dq_type = edge.dkv_type;
  static_assert(sizeof(query::Smem<Traits>) <= emulated::kSharedBytes);
  const auto groups = static_cast<uint32_t>(2 * s.num_heads_kv * edge.num_key_groups);
  emulated::run_one_by_one({std::max(tiles, 1u), query::kEdgeThreads, order},
                           [&] { query::before_kernel<Element, kHeadDim>(edge); });
  emulated::run({c.blocks, Traits::kThreads, order}, [&] { query::query_backward_kernel<Traits>(params); });
  emulated::run_one_by_one({(groups + query::kGroupsOfCta - 1) / query::kGroupsOfCta, query::kEdgeThreads, order},
                           [&] { query::after_kernel<Element, kHeadDim>(edge); });
}

template <typename Element, int kHeadDim>
RandomConfig config_of(const Case& c) {
  RandomConfig config = config_of(c.shape, kHeadDim, kHeadDim, 0.0f, c.strided);
  config.shape.dtype = std::is_same_v<Element, __half> ? DType::kFloat16 : DType::kBFloat16;
  config.grad_dtype = c.gradients == DType::kFloat32 ? DType::kFloat32 : config.shape.dtype;
  config.out_dtype = c.strided ? config.shape.dtype : DType::kFloat32;
  return config;
}

template <typename Element, int kHeadDim>
void expect_close(const Case& c, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", order " << order.seed);
  RandomAttention r = make_random(config_of<Element, kHeadDim>(c), c.slices, 1);
  const reference::DenseResult expected = reference::dense_attention(r.problem);
  emulated_backward::fill_results(r, expected);
  const std::vector<float> delta = c.delta ? emulated_backward::delta_of(r, expected) : std::vector<float>();
  run_call<Element, kHeadDim>(r, list_of({c.slices}, r.config.shape), c, c.delta ? delta.data() : nullptr, order);
  emulated_backward::expect_gradients(r, expected, false);
}

template <typename Element, int kHeadDim>
void expect_all_close(int first) {
  emulated::in_orders(first, cases(),
                      [](const Case& c, const Order& order) { expect_close<Element, kHeadDim>(c, order); });
}
TEST(Sm90EmulatedQueryBackward, AgreesWithFloat64HeadDim64) { expect_all_close<__nv_bfloat16, 64>(0); }
TEST(Sm90EmulatedQueryBackward, AgreesWithFloat64HeadDim128) { expect_all_close<__nv_bfloat16, 128>(1); }
TEST(Sm90EmulatedQueryBackward, AgreesWithFloat64InFloat16HeadDim128) { expect_all_close<__half, 128>(2); }

TEST(Sm90EmulatedQueryBackward, MasksOfHeadGroupsAgreeWithFloat64) {
  const AttnShape shape = shape_of(160, 256, 32, 4);
  const Case c{"masks of two key heads each", shape, {}, 3};
  const std::vector<std::vector<AttnSlice>> masks{blocks_of(shape, 16, 0.4, 8), causal_blocks_of(shape, 32, 0.5, 9)};
  for (int i = 0; i < (support::is_long_run() ? 6 : 1); ++i) {
    RandomHeads r = make_random_heads(config_of<__nv_bfloat16, 128>(c), masks, 3);
    emulated_backward::fill_results(r.all, r.expected);
    run_call<__nv_bfloat16, 128>(r.all, list_of(masks, r.all.config.shape), c, nullptr, emulated::order(i));
    emulated_backward::expect_gradients(r.all, r.expected, false);
  }
}

}  // namespace
}  // namespace tangram::test
