// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backward calls of masks that keep small blocks, whose kernels gather keys, against dense attention in float64. Needs
// a Hopper GPU; skipped elsewhere.
#include <gtest/gtest.h>

#include <random>

#include "attn/cpu/random_heads.hpp"
#include "attn/sm90/backward_problem.hpp"

namespace tangram {
namespace {

using test::make_random;
using test::RandomAttention;
using test::RandomConfig;
using test::sm90_backward::have_hopper;
using test::sm90_backward::OnDevice;
using test::sm90_backward::prepare;
using test::sm90_backward::relative_error;
using test::sm90_backward::solve;
using test::sm90_backward::tolerance;

/// Blocks at random, of a fifth of the rows none; with `causal` those on the diagonal are, and none is above.
std::vector<AttnSlice> blocks_of(const AttnShape& shape, int64_t block, double share, bool causal = false) {
  std::mt19937 random(5);
  std::bernoulli_distribution sees(share);
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < shape.seqlen_q; q += block) {
    for (int64_t k = 0; k + block <= shape.seqlen_k && q / block % 5 != 1; k += block) {
      if (!sees(random) || (causal && k >= q)) continue;
      slices.push_back(AttnSlice::full({q, std::min(q + block, shape.seqlen_q)}, {k, k + block}));
    }
    if (causal && q + block <= shape.seqlen_q) slices.push_back(AttnSlice::causal({q, q + block}, {q, q + block}));
  }
  return slices;
}

void expect_gradients(const RandomAttention& r, const reference::DenseResult& expected) {
  const AttnShape& s = r.config.shape;
  EXPECT_LT(relative_error(r.dq, expected.dq, s.num_heads_q, s.head_dim), tolerance(s.dtype));
  EXPECT_LT(relative_error(r.dk, expected.dk, s.num_heads_kv, s.head_dim), tolerance(s.dtype));
  EXPECT_LT(relative_error(r.dv, expected.dv, s.num_heads_kv, s.head_dim_v), tolerance(s.dtype));
}

class Sm90QueryBackward : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_hopper()) GTEST_SKIP() << "no Hopper GPU";
  }
};

struct Case {
  int64_t block;
  AttnShape shape;  // with queries few, and keys as many as make these kernels the faster ones
  DType gradients;
  bool strided = false;
  bool causal = false;
};

AttnShape shape_of(int64_t rows, int64_t keys, int heads_q, int heads_kv, DType dtype = DType::kBFloat16,
                   int dim = 128) {
  return {rows, keys, heads_q, heads_kv, dim, dim, dtype};
}

std::vector<Case> cases() {
  constexpr DType kBf16 = DType::kBFloat16, kF16 = DType::kFloat16, kF32 = DType::kFloat32;
  return {{16, shape_of(500, 1050, 8, 1), kBf16},
          {16, shape_of(250, 1050, 16, 2, kF16), kF16, true},
          {16, shape_of(700, 700, 8, 1), kBf16, false, true},
          {32, shape_of(250, 2050, 8, 1), kF32},
          {64, shape_of(250, 4100, 8, 1), kBf16, true},
          {64, shape_of(250, 4100, 8, 2, kF16), kF16},
          {16, shape_of(300, 1050, 8, 1, kBf16, 64), kBf16, false, true},
          {32, shape_of(250, 2050, 16, 2, kF16, 64), kF32}};
}

// NaN in values that must not be read, in a workspace of NaN, called again and again.
TEST_F(Sm90QueryBackward, AgreesWithFloat64) {
  const Sm90Backend backend;
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message() << "blocks of " << c.block << ", " << c.shape.seqlen_k << " keys");
    RandomConfig config;
    config.shape = c.shape;
    config.grad_dtype = config.out_dtype = c.gradients;
    config.strided = c.strided;
    config.gap = 8;
    RandomAttention r = make_random(config, blocks_of(c.shape, c.block, 0.25, c.causal), 7);
    const reference::DenseResult expected = solve(r);
    const auto mask = prepare(backend, r);
    ASSERT_TRUE(mask->parts().has(MaskPart::kBackwardSparse));
    const auto bytes = static_cast<size_t>(backend.workspace_bytes(*mask, AttnPass::kBackward));
    const cuda::DeviceBuffer workspace(bytes);
    OnDevice device(r);
    device.args.workspace = {workspace.as<void>(), static_cast<int64_t>(bytes)};
    for (int turn = 0; turn < 3; ++turn) {
      ASSERT_EQ(cudaMemset(workspace.as<void>(), 0xff, bytes), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      backend.backward(*mask, device.args);
      device.fetch(r);
      expect_gradients(r, expected);
    }
  }
}

TEST_F(Sm90QueryBackward, MasksOfHeadGroupsAgreeWithFloat64) {
  const Sm90Backend backend;
  RandomConfig config;
  config.shape = {512, 640, 32, 4, 128, 128, DType::kBFloat16};
  config.out_dtype = config.grad_dtype = DType::kBFloat16;
  const std::vector<std::vector<AttnSlice>> masks{blocks_of(config.shape, 16, 0.3),
                                                  blocks_of(config.shape, 32, 0.3, true)};
  test::RandomHeads r = test::make_random_heads(config, masks, 3);
  const std::vector<std::span<const AttnSlice>> slices(masks.begin(), masks.end());
  const auto mask = backend.make_slot(config.shape);
  backend.install(
      *mask,
      backend.build({.masks = slices, .shape = config.shape, .parts = kBackwardParts, .gpu = backend.caps().gpu}));
  ASSERT_TRUE(mask->parts().has(MaskPart::kBackwardSparse));
  for (size_t i = 0; i < r.expected.lse.size(); ++i) r.all.lse[i] = static_cast<float>(r.expected.lse[i]);
  for (size_t i = 0; i < r.expected.out.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / (32 * 128);
    r.all.out.set(row, static_cast<int>(i / 128 % 32), static_cast<int>(i % 128), r.expected.out[i]);
  }
  OnDevice device(r.all);
  backend.backward(*mask, device.args);
  device.fetch(r.all);
  expect_gradients(r.all, r.expected);
}

// Calls that these kernels do not take run the others, of the same mask.
TEST_F(Sm90QueryBackward, OtherCallsOfTheMaskAgreeToo) {
  const Sm90Backend backend;
  RandomConfig config;
  config.shape = {512, 512, 8, 1, 128, 128, DType::kBFloat16};
  config.seqlen_sink = 1;
  RandomAttention r = make_random(config, blocks_of(config.shape, 16, 0.25), 7);
  const reference::DenseResult expected = solve(r);
  const auto mask = prepare(backend, r);
  ASSERT_TRUE(mask->parts().has(MaskPart::kBackwardSparse));
  for (const bool deterministic : {false, true}) {
    OnDevice device(r);
    device.args.options.deterministic = deterministic;
    backend.backward(*mask, device.args);
    device.fetch(r);
    expect_gradients(r, expected);
  }
}

// Where KV-stationary steps are full, or tiles see more than whole groups, there is no list.
TEST_F(Sm90QueryBackward, TakesMasksOfSmallBlocksAlone) {
  const Sm90Backend backend;
  const AttnShape shape{1024, 1024, 8, 1, 128, 128, DType::kBFloat16};
  const auto has_list = [&](const std::vector<AttnSlice>& slices, AttnShape of) {
    const auto mask = prepare(backend, slices, of);
    return mask->parts().has(MaskPart::kBackwardSparse);
  };
  EXPECT_TRUE(has_list(blocks_of(shape, 16, 0.2), shape));
  EXPECT_TRUE(has_list(blocks_of(shape, 16, 0.2, true), shape));
  EXPECT_FALSE(has_list({AttnSlice::full({0, 1024}, {0, 1024})}, shape));
  EXPECT_FALSE(has_list({AttnSlice::causal({0, 1024}, {0, 1024})}, shape));
  EXPECT_FALSE(has_list(blocks_of(shape, 24, 0.2), shape));
  AttnShape small = shape;
  small.head_dim = small.head_dim_v = 96;
  EXPECT_FALSE(has_list(blocks_of(shape, 16, 0.2), small));
}

}  // namespace
}  // namespace tangram
