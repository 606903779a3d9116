// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks of head groups in one launch, run by the emulator, against float64 and against a launch for each group.
#include "attn/cpu/random_heads.hpp"
#include "attn/sm90/emulated/backward_problem.hpp"
#include "attn/sm90/emulated/forward_problem.hpp"
#include "schedule/head_lists.hpp"

namespace tangram::test {
namespace {

using emulated::Order;
using emulated_problem::config_of;
using emulated_problem::shape_of;

struct HeadCase {
  const char* name;
  AttnShape shape;
  std::vector<std::vector<AttnSlice>> masks;
  int64_t sinks = 0;
};

/// Masks of different kinds, so that tables of query tiles differ in length, and walks in direction.
std::vector<std::vector<AttnSlice>> unlike_masks() {
  return {{AttnSlice::causal({0, 270}, {0, 300})},
          emulated_problem::small_documents(),
          {},
          {AttnSlice::inv_causal({0, 270}, {0, 300})}};
}

std::vector<HeadCase> cases() {
  const AttnShape two = shape_of(300, 420, 4, 2), four = shape_of(270, 300, 4, 4), grouped = shape_of(270, 300, 8, 4);
  return {
      {"blocks of two heads", two, random_blocks(two, 2, 64, 64, 0.4, 1)},
      {"a head each", four, unlike_masks(), 1},
      {"two query heads each", grouped, unlike_masks()},
      {"two K/V heads each", grouped, {unlike_masks()[0], unlike_masks()[1]}},
  };
}

GpuModel gpu_of(int multiprocessors) {
  GpuModel gpu;
  gpu.multiprocessors = multiprocessors;
  return gpu;
}

RandomConfig config_of(const HeadCase& c, int head_dim, int head_dim_v) {
  RandomConfig config = config_of(c.shape, head_dim, head_dim_v, 0, false);
  config.seqlen_sink = c.sinks;
  config.out_dtype = config.grad_dtype = DType::kBFloat16;
  return config;
}

template <typename Traits>
void run_forward(RandomAttention& r, const schedule::ForwardLists& lists, const Order& order) {
  int32_t counters[2] = {0, 0};
  typename Traits::Params params = emulated_forward::params_of<Traits>(r, counters);
  params.work_tiles = lists.work_tiles.data();
  params.work_tile_groups = lists.work_tile_groups.data();
  params.runs = lists.runs.data();
  params.intervals = lists.intervals.data();
  if constexpr (Traits::kGathered) params.groups = lists.key_groups.data();
  params.num_work_tiles = static_cast<int32_t>(lists.work_tiles.size());
  params.num_groups = params.groups_per_section = 1;
  emulated::run({3, Traits::kThreads, order}, [&] { sm90::forward_kernel<Traits>(params); });
  EXPECT_EQ(counters[0] + counters[1], 0);
}

template <typename Traits>
void run_forward_of_group(RandomAttention& r, const Order& order) {
  const TileList tiles = emulated_forward::tiles_of<Traits>(r.slices, r.config.shape);
  int32_t counters[2] = {0, 0};
  typename Traits::Params params = emulated_forward::params_of<Traits>(r, counters);
  params.work_tiles = tiles.work_tiles.data();
  params.runs = tiles.runs.data();
  params.intervals = tiles.intervals.data();
  params.num_work_tiles = static_cast<int32_t>(tiles.work_tiles.size());
  emulated::run({2, Traits::kThreads, order}, [&] { sm90::forward_kernel<Traits>(params); });
}

/// The heads of one of `num_groups` groups are, bit for bit, those of `group`.
void expect_same(const HostTensor& all, const HostTensor& group, int g, int num_groups, const char* name) {
  const int heads = all.heads() / num_groups;
  for (int64_t row = 0; row < group.rows(); ++row) {
    for (int h = 0; h < heads; ++h) {
      for (int d = 0; d < group.dim(); ++d) {
        ASSERT_EQ(all.at(row, g * heads + h, d), group.at(row, h, d)) << name << " " << row << " " << h << " " << d;
      }
    }
  }
}

template <typename Traits>
void expect_forward(const HeadCase& c, int head_dim, int head_dim_v, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", order " << order.seed);
  RandomHeads r = make_random_heads(config_of(c, head_dim, head_dim_v), c.masks, 3);
  const AttnShape& s = r.all.config.shape;
  std::vector<TileList> tiles;
  for (const auto& mask : c.masks) tiles.push_back(emulated_forward::tiles_of<Traits>(mask, s));
  const schedule::ForwardLists lists = schedule::join_tiles(
      tiles, s, s.num_heads_kv, gpu_of(3), {Traits::kGathered ? std::span(tiles) : std::span<const TileList>{}});
  ASSERT_TRUE(lists.part_rows.empty());
  ASSERT_EQ(lists.key_groups.empty(), !Traits::kGathered);
  run_forward<Traits>(r.all, lists, order);
  emulated_forward::expect_results(r.all, r.expected);
  if (Traits::kGathered) return;
  for (size_t g = 0; g < r.groups.size(); ++g) {
    run_forward_of_group<Traits>(r.groups[g], order);
    expect_same(r.all.out, r.groups[g].out, static_cast<int>(g), static_cast<int>(r.groups.size()), "out");
  }
}

TEST(Sm90EmulatedHeadMasks, ForwardAgreesWithFloat64AndALaunchForEachGroup) {
  emulated::in_orders(
      0, cases(),
      [](const HeadCase& c, const Order& order) {
        expect_forward<sm90::ForwardTraits<__nv_bfloat16, 128, 128, false>>(c, 128, 128, order);
      },
      2);
  emulated::in_orders(
      1, cases(),
      [](const HeadCase& c, const Order& order) {
        expect_forward<sm90::AnyDimForwardTraits<__nv_bfloat16, 64, 64, false>>(c, 40, 56, order);
      },
      2);
}

TEST(Sm90EmulatedHeadMasks, ForwardGathersBlocksOfEachGroup) {
  const AttnShape shape = shape_of(128, 512, 16, 2);
  std::vector<std::vector<AttnSlice>> masks = random_blocks(shape, 2, 16, 16, 0.4, 5);
  const HeadCase blocks{"small blocks", shape, masks};
  expect_forward<sm90::GatheredTraitsOf<__nv_bfloat16, 128, false>>(blocks, 128, 128, emulated::order(1));
  expect_forward<sm90::GatheredTraitsOf<__nv_bfloat16, 64, false>>(blocks, 64, 64, emulated::order(2));
}

schedule::WorkList work_of(const RandomHeads& r, BackwardCalls calls) {
  const AttnShape& s = r.all.config.shape;
  std::vector<TileList> tiles;
  const std::vector<std::vector<AttnSlice>> masks = r.slices();
  for (const auto& mask : masks) {
    std::vector<AttnSlice> keys_first;
    for (const AttnSlice& slice : mask) keys_first.push_back(schedule::transposed(slice));
    tiles.push_back(schedule::build_tile_list(keys_first, s.seqlen_k, s.seqlen_q, sm90::backward::kTileShape));
  }
  const std::vector<std::span<const AttnSlice>> slices(masks.begin(), masks.end());
  return schedule::join_work(tiles, slices, s, gpu_of(4), calls);
}

template <typename Traits>
void expect_backward(const HeadCase& c, int head_dim, int head_dim_v, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", order " << order.seed
                                  << (Traits::kDeterministic ? ", deterministic" : ""));
  RandomConfig config = config_of(c, head_dim, head_dim_v);
  config.out_dtype = DType::kFloat32;
  RandomHeads r = make_random_heads(config, c.masks, 3);
  emulated_backward::fill_results(r.all, r.expected);
  const BackwardCalls calls = Traits::kDeterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault;
  const schedule::WorkList work = work_of(r, calls);
  emulated_backward::run_call<Traits>(emulated_backward::params_of(work), work, r.all, false, 3, order);
  emulated_backward::expect_gradients(r.all, r.expected, false);
  if (!Traits::kDeterministic) return;
  const HostTensor dq = r.all.dq.clone(), dk = r.all.dk.clone(), dv = r.all.dv.clone();
  emulated_backward::run_call<Traits>(emulated_backward::params_of(work), work, r.all, false, 2,
                                      emulated::order(static_cast<int>(order.seed) + 1));
  expect_same(r.all.dq, dq, 0, 1, "dq");
  expect_same(r.all.dk, dk, 0, 1, "dk");
  expect_same(r.all.dv, dv, 0, 1, "dv");
}

TEST(Sm90EmulatedHeadMasks, BackwardAgreesWithFloat64AndRepeats) {
  using sm90::backward::Traits;
  emulated::in_orders(
      0, cases(),
      [](const HeadCase& c, const Order& order) {
        expect_backward<Traits<__nv_bfloat16, 128, false, false>>(c, 128, 128, order);
        expect_backward<Traits<__nv_bfloat16, 64, false, true>>(c, 64, 64, order);
      },
      2);
}

TEST(Sm90EmulatedHeadMasks, BackwardOfAnyDimAgreesWithFloat64AndRepeats) {
  using sm90::backward::AnyDimTraits;
  emulated::in_orders(
      1, cases(),
      [](const HeadCase& c, const Order& order) {
        expect_backward<AnyDimTraits<__nv_bfloat16, 64, 64, false, false>>(c, 40, 56, order);
        expect_backward<AnyDimTraits<__nv_bfloat16, 192, 128, false, true>>(c, 192, 128, order);
      },
      2);
}

}  // namespace
}  // namespace tangram::test
