// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What GPU backends share, with tiles that no real backend has: each visible cell once, in every kind of slot.
#include "attn/gpu/gpu_backend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "attn/cpu/random_attention.hpp"
#include "attn/gpu/fake_gpu_backend.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/mask_buffer.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using test::FakeGpuBackend;

// float32 sums of 8 bits of mantissa each, a few hundred terms.
constexpr double kTolerance = 1e-4;

test::RandomConfig config_of(int64_t rows, int heads_q, int heads_kv) {
  test::RandomConfig config;
  config.shape = {rows, rows, heads_q, heads_kv, 16, 16, DType::kBFloat16};
  config.out_dtype = DType::kFloat32;
  return config;
}

Mask mask_of(std::mt19937& rng, int64_t rows) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  std::vector<int64_t> ends = {0};
  while (ends.back() < rows) ends.push_back(std::min(rows, ends.back() + 1 + below(150)));
  switch (below(4)) {
    case 0: return sliding_window_mask(ends, {below(40), below(2) * 10});
    case 1: return global_window_mask(rows, 1 + below(8), {below(60), 0});
    default: return varlen_mask(ends, below(2) == 0);
  }
}

test::RandomAttention random_problem(std::mt19937& rng) {
  const int heads[][2] = {{6, 2}, {5, 1}, {2, 2}};  // of 6 and 5 query heads some share a tile
  const auto [heads_q, heads_kv] = heads[rng() % 3];
  const auto rows = 30 + static_cast<int64_t>(rng() % 170);
  const Mask mask = mask_of(rng, rows);
  const std::span<const AttnSlice> slices = mask.slices();
  return test::make_random(config_of(rows, heads_q, heads_kv), {slices.begin(), slices.end()}, rng());
}

TEST(GpuBackend, ExactSlotsShowEachCellOnce) {
  const FakeGpuBackend backend;
  std::mt19937 rng(1);
  for (int i = 0; i < 20; ++i) {
    test::RandomAttention r = random_problem(rng);
    FlexAttention attention(r.slices, r.config.shape, backend);
    attention.forward(r.forward_args());
    AttnBackwardArgs args = r.backward_args();
    args.options.deterministic = i % 2 == 0;  // which kind comes first decides what the slot holds
    for (int call = 0; call < 2; ++call) {
      attention.backward(args);
      test::expect_close(r, kTolerance, "mask " + std::to_string(i));
      args.options.deterministic = !args.options.deterministic;
    }
  }
}

TEST(GpuBackend, PaddedSlotsShowEachCellOnce) {
  const FakeGpuBackend backend;
  std::mt19937 rng(2);
  for (int i = 0; i < 20; ++i) {
    test::RandomAttention r = random_problem(rng);
    const AttnShape& shape = r.config.shape;
    const bool deterministic = i % 2 == 0;
    MaskBuffer buffer(shape, {.max_documents = 64, .max_slices = 512, .deterministic = deterministic}, backend);
    buffer.set(causal_mask(shape.seqlen_q, shape.seqlen_k));
    buffer.set(Mask(shape.seqlen_q, shape.seqlen_k, r.slices));  // nothing of the mask before is left
    buffer.forward(r.forward_args());
    AttnBackwardArgs args = r.backward_args();
    args.options.deterministic = deterministic;
    buffer.backward(args);
    test::expect_close(r, kTolerance, "mask " + std::to_string(i));
  }
}

// Both head groups see the same: as one mask for all heads.
TEST(GpuBackend, MasksOfHeadGroupsShareALaunch) {
  const FakeGpuBackend backend;
  std::mt19937 rng(3);
  for (int i = 0; i < 5; ++i) {
    const Mask mask = mask_of(rng, 150);
    const std::span<const AttnSlice> slices = mask.slices();
    test::RandomAttention r = test::make_random(config_of(150, 4, 2), {slices.begin(), slices.end()}, rng());
    const std::vector<Mask> masks = {mask, mask};
    FlexAttention attention(masks, {.num_heads_q = 4, .num_heads_kv = 2, .head_dim = 16, .head_dim_v = 16}, backend);
    attention.forward(r.forward_args());
    attention.backward(r.backward_args());
    test::expect_close(r, kTolerance, "mask " + std::to_string(i));
  }
}

TEST(GpuBackend, CapacitiesForBlocksNeedKernelsThatGather) {
  const FakeGpuBackend backend;
  const AttnShape shape = config_of(256, 2, 2).shape;
  EXPECT_THROW(MaskBuffer(shape, {.max_slices = 64, .block_size = 16}, backend), InvalidArgument);
}

TEST(GpuBackend, NothingIsInPartsWhereNoKernelJoinsThem) {
  const FakeGpuBackend backend;
  const AttnShape shape{16, 60'000, 1, 1, 16, 16, DType::kBFloat16};  // few rows, long keys
  const std::vector<AttnSlice> all = {AttnSlice::full({0, 16}, {0, 60'000})};
  const auto slot = make_mask_slot(backend, all, shape, {.passes = AttnPasses::kForward});
  EXPECT_EQ(gpu::as_gpu_slot(*slot).forward_view().num_part_tiles, 0);
}

}  // namespace
}  // namespace tangram
