// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward kernels for gathered keys, run by the emulator, against float64.
#include <random>

#include "attn/cpu/random_heads.hpp"
#include "attn/sm90/emulated/query_backward_problem.hpp"

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

/// Chosen blocks below the diagonal; blocks on it are causal.
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

/// One mask, or as many as there are groups of heads.
schedule::GroupList list_of(const std::vector<std::vector<AttnSlice>>& masks, const AttnShape& s) {
  const int pack = s.num_heads_q / s.num_heads_kv;
  std::vector<schedule::GroupList> lists;
  for (const std::vector<AttnSlice>& slices : masks) {
    std::optional<schedule::GroupList> list = schedule::group_work_tiles(
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
  const bool named = !list.work_tiles.empty() && list.work_tiles[0].head_group >= 0;
  emulated_query_backward::run_call<Element, kHeadDim>(
      r,
      {list.work_tiles.data(), list.groups.data(), list.masks.empty() ? nullptr : list.masks[0].keys,
       static_cast<int32_t>(list.work_tiles.size()), named, c.groups_per_section},
      c.blocks, delta, order);
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
  emulated::in_orders(
      first, cases(), [](const Case& c, const Order& order) { expect_close<Element, kHeadDim>(c, order); }, 2);
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
