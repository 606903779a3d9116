// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks of head groups in one launch of the backward kernels of backend sm80, run by the emulator, against float64.
#include "attn/cpu/random_heads.hpp"
#include "attn/sm80/emulated/backward_problem.hpp"

namespace tangram::test::emulated_sm80 {
namespace {

using sm80::backward::Traits;

struct HeadCase {
  const char* name;
  AttnShape shape;
  std::vector<std::vector<AttnSlice>> masks;
};

/// Walks differ in direction, which deterministic calls must follow.
std::vector<HeadCase> cases() {
  const AttnShape four = shape_of(140, 150, 4, 4), grouped = shape_of(130, 140, 8, 4);
  return {
      {"a head each, small blocks", four, random_blocks(four, 4, 16, 16, 0.3, 0)},
      {"two query heads each",
       grouped,
       {{AttnSlice::causal({0, 130}, {0, 140})}, short_slices(), {}, {AttnSlice::inv_causal({0, 130}, {0, 140})}}},
      {"two K/V heads each", four, random_blocks(four, 2, 32, 32, 0.3, 1)},
  };
}

template <typename Traits>
void expect_backward(const HeadCase& c, bool deterministic, const emulated::Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", order " << order.seed << (deterministic ? ", deterministic" : ""));
  RandomConfig config = config_of(c.shape, Traits::kDimQk, Traits::kDimV, 0.0f);
  config.out_dtype = config.grad_dtype = DType::kFloat32;
  RandomHeads r = make_random_heads(config, c.masks, 3);
  const AttnShape& s = r.all.config.shape;
  fill_results(r.all, r.expected, false);
  std::vector<TileList> tiles;
  for (const auto& mask : c.masks) {
    tiles.push_back(
        schedule::transposed_tile_list(mask, s.seqlen_q, s.seqlen_k, {Traits::kKeys, Traits::kQueries, true}));
  }
  const std::vector<std::span<const AttnSlice>> masks(c.masks.begin(), c.masks.end());
  GpuModel gpu;
  gpu.multiprocessors = 4;
  const BackwardCalls calls = deterministic ? BackwardCalls::kDeterministic : BackwardCalls::kDefault;
  const schedule::WorkList work = schedule::join_work(tiles, masks, s, gpu, calls);
  BackwardCase of_call{.shape = s, .blocks = 3, .multiprocessors = 4, .gradients = DType::kFloat32};
  run_backward<Traits>(r.all, of_call, work, nullptr, deterministic, order);
  expect_gradients(r.all, r.expected, false);
}

TEST(Sm80EmulatedHeadMasks, BackwardAgreesWithFloat64) {
  emulated::in_orders(0, cases(), [](const HeadCase& c, const emulated::Order& order) {
    expect_backward<Traits<__nv_bfloat16, 64, 64, false>>(c, true, order);
    if (support::is_long_run()) expect_backward<Traits<__nv_bfloat16, 128, 128, false>>(c, false, order);
  });
}

}  // namespace
}  // namespace tangram::test::emulated_sm80
