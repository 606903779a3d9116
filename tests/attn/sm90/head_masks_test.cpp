// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks of head groups in one launch a pass, against float64 and against a call for each group. Bounds as in
// forward_test.cpp and backward_problem.hpp. Needs a Hopper GPU; skipped elsewhere.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "attn/cpu/random_heads.hpp"
#include "attn/sm90/on_device.hpp"
#include "support/relative_error.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {
namespace {

using test::make_random_heads;
using test::OnDevice;
using test::random_blocks;
using test::RandomAttention;
using test::RandomConfig;
using test::RandomHeads;

struct Dims {
  int qk, v;
};

class Sm90HeadMasks : public test::Sm90OnStream {
 protected:
  FlexAttention attention(const RandomHeads& r) const {
    const AttnShape& s = r.all.config.shape;
    std::vector<Mask> masks;
    for (const RandomAttention& group : r.groups) masks.emplace_back(s.seqlen_q, s.seqlen_k, group.slices);
    return {masks, {s.num_heads_q, s.num_heads_kv, s.head_dim, s.head_dim_v, s.dtype}, backend_};
  }
  void call(FlexAttention& attention, OnDevice& device, bool deterministic) const {
    device.backward.options.deterministic = deterministic;
    device.poison_outputs();
    attention.forward(device.forward, stream_);
    attention.backward(device.backward, stream_);
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  void expect_right(RandomHeads& r) const {
    RandomAttention& a = r.all;
    const AttnShape& s = a.config.shape;
    const bool half = s.dtype == DType::kFloat16;
    const auto check = [&](const char* name, const HostTensor& got, const std::vector<double>& want, int heads, int dim,
                           double bound) { EXPECT_LT(support::relative_error(got, want, heads, dim), bound) << name; };
    check("out", a.out, r.expected.out, s.num_heads_q, s.head_dim_v, half ? 8.0 / 4096 : 4.0 / 512);
    // Tolerance of gradients: P, dS, out (of which delta is made) and results are rounded, by up to 2^-9 each in
    // bfloat16. If only a few rows are summed, roundings do not average out.
    const double bound = half ? 1e-3 : 8e-3;
    check("dq", a.dq, r.expected.dq, s.num_heads_q, s.head_dim, bound);
    check("dk", a.dk, r.expected.dk, s.num_heads_kv, s.head_dim, bound);
    check("dv", a.dv, r.expected.dv, s.num_heads_kv, s.head_dim_v, bound);
    test::expect_logits(a, r.expected);
    const test::Distance dsink = test::distance({a.dsink.begin(), a.dsink.end()}, r.expected.dsink);
    EXPECT_LE(dsink.error, 1e-2 * dsink.norm + 1e-6);
  }

  test::TestedBackend backend_;
};

RandomConfig config_of(const AttnShape& shape) {
  RandomConfig config;
  config.shape = shape;
  config.out_dtype = config.grad_dtype = shape.dtype;
  return config;
}

class Sm90HeadMasksOfDims : public Sm90HeadMasks, public testing::WithParamInterface<Dims> {};
INSTANTIATE_TEST_SUITE_P(Dims, Sm90HeadMasksOfDims,
                         testing::Values(Dims{128, 128}, Dims{64, 64}, Dims{32, 32}, Dims{40, 56}, Dims{96, 96},
                                         Dims{192, 128}, Dims{256, 256}),
                         [](const auto& dims) {
                           return "d" + std::to_string(dims.param.qk) + "_" + std::to_string(dims.param.v);
                         });

TEST_P(Sm90HeadMasksOfDims, AgreeWithFloat64) {
  const Dims dims = GetParam();
  unsigned seed = static_cast<unsigned>(dims.qk + dims.v);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [heads_q, heads_kv, num_masks] : {std::array{4, 4, 4}, {8, 2, 2}, {12, 4, 2}, {16, 2, 2}}) {
      RandomConfig config = config_of({500, 700, heads_q, heads_kv, dims.qk, dims.v, dtype});
      config.softcap = seed % 5 == 4 ? 5.0f : 0.0f;
      config.seqlen_sink = seed % 3;
      config.sink_layout = seed % 2 == 0 ? SinkLayout::kSh : SinkLayout::kSsh;
      config.strided = seed % 2 == 1;
      config.gap = 8;
      const int64_t block = int64_t{16} << seed % 4;
      SCOPED_TRACE(testing::Message() << "head dims " << dims.qk << ", " << dims.v << ", heads " << heads_q << ", "
                                      << heads_kv << ", masks " << num_masks << ", blocks of " << block);
      RandomHeads r =
          make_random_heads(config, random_blocks(config.shape, num_masks, block, block, 0.3, seed), 10 * seed + 1);
      FlexAttention one = attention(r);
      OnDevice device(r.all);
      for (const bool deterministic : {false, true}) {
        call(one, device, deterministic);
        device.fetch();
        expect_right(r);
      }
      ++seed;
    }
  }
}

TEST_F(Sm90HeadMasks, OfUnlikeMasksAgreeWithFloat64) {
  const RandomConfig config = config_of({700, 700, 8, 4, 128, 128, DType::kBFloat16});
  RandomHeads r = make_random_heads(config,
                                    {{AttnSlice::causal({0, 700}, {0, 700})},
                                     {AttnSlice::causal({0, 130}, {0, 130}), AttnSlice::full({130, 333}, {200, 333})},
                                     {},
                                     {AttnSlice::inv_causal({0, 700}, {0, 700})}},
                                    3);
  FlexAttention one = attention(r);
  OnDevice device(r.all);
  for (const bool deterministic : {false, true}) {
    call(one, device, deterministic);
    device.fetch();
    expect_right(r);
  }
}

TEST_F(Sm90HeadMasks, DeterministicCallsRepeatBitForBit) {
  for (const auto& [heads_q, heads_kv] : {std::pair{4, 4}, {16, 4}}) {
    const RandomConfig config = config_of({3000, 3000, heads_q, heads_kv, 128, 128, DType::kBFloat16});
    std::vector<std::vector<AttnSlice>> masks = random_blocks(config.shape, 4, 64, 64, 0.1, 4);
    masks[2] = {AttnSlice::causal({0, 3000}, {0, 3000})};
    RandomConfig unsolved = config;
    unsolved.shape.seqlen_q = unsolved.shape.seqlen_k = 3000;
    RandomAttention r = test::make_random(unsolved, {AttnSlice::full({0, 3000}, {0, 3000})}, 1);
    std::vector<Mask> of_heads;
    for (const auto& slices : masks) of_heads.emplace_back(3000, 3000, slices);
    FlexAttention one(of_heads, {heads_q, heads_kv, 128, 128, DType::kBFloat16}, backend_);
    OnDevice device(r);
    call(one, device, true);
    const std::vector<char> first = device.output_bytes();
    for (int i = 0; i < test::num_rounds(30); ++i) {
      call(one, device, true);
      ASSERT_EQ(device.output_bytes(), first) << "launch " << i;
    }
  }
}

// Work tiles are the same, and only who computes them when differs: where no tile is in parts.
TEST_F(Sm90HeadMasks, OutEqualsThatOfACallForEachGroupBitForBit) {
  for (const auto& [block, heads_q] : {std::pair{64, 16}, {16, 16}, {128, 4}}) {
    const RandomConfig config = config_of({1024, 1024, heads_q, 2, 128, 128, DType::kBFloat16});
    RandomHeads r = make_random_heads(config, random_blocks(config.shape, 2, block, block, 0.4, 6), 1);
    FlexAttention one = attention(r);
    OnDevice device(r.all);
    call(one, device, false);
    device.fetch();
    for (int g = 0; g < 2; ++g) {
      RandomAttention& group = r.groups[static_cast<size_t>(g)];
      const AttnShape& s = group.config.shape;
      FlexAttention alone(group.slices, s, backend_);
      if (alone.forward_workspace_bytes() > 0 || one.forward_workspace_bytes() > 0) continue;  // in parts
      OnDevice on_device(group);
      call(alone, on_device, false);
      on_device.fetch();
      for (int64_t row = 0; row < s.seqlen_q; ++row) {
        for (int h = 0; h < s.num_heads_q; ++h) {
          for (int d = 0; d < s.head_dim_v; ++d) {
            ASSERT_EQ(r.all.out.at(row, g * s.num_heads_q + h, d), group.out.at(row, h, d)) << row << " " << h;
          }
        }
      }
    }
  }
}

TEST_F(Sm90HeadMasks, OfFewRowsAreComputedInParts) {
  for (const Dims dims : {Dims{128, 128}, {64, 64}, {40, 56}, {192, 128}}) {
    RandomConfig config = config_of({5, 9000, 16, 4, dims.qk, dims.v, DType::kBFloat16});
    config.seqlen_sink = 1;
    std::vector<std::vector<AttnSlice>> masks = random_blocks(config.shape, 4, 5, 64, 0.6, 7);
    masks[0] = {AttnSlice::full({0, 5}, {0, 9000})};
    masks[1] = {};
    masks[2] = {AttnSlice::full({2, 3}, {17, 18})};
    SCOPED_TRACE(testing::Message() << "head dims " << dims.qk << ", " << dims.v);
    RandomHeads r = make_random_heads(config, masks, 2);
    FlexAttention one = attention(r);
    EXPECT_GT(one.forward_workspace_bytes(), 0) << "the test must be of masks in parts";
    OnDevice device(r.all);
    call(one, device, true);
    device.fetch();
    expect_right(r);
  }
}

TEST_F(Sm90HeadMasks, CallsCanBeCaptured) {
  const RandomConfig config = config_of({600, 600, 8, 4, 64, 64, DType::kBFloat16});
  RandomHeads r = make_random_heads(config, random_blocks(config.shape, 4, 32, 32, 0.3, 8), 5);
  FlexAttention one = attention(r);
  OnDevice device(r.all);
  call(one, device, false);  // which allocates
  cudaGraph_t graph = nullptr;
  cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  one.forward(device.forward, stream_);
  one.backward(device.backward, stream_);
  cuda::check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t exec = nullptr;
  cuda::check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  for (int i = 0; i < 3; ++i) {
    device.poison_outputs();
    cuda::check(cudaGraphLaunch(exec, stream_), "cudaGraphLaunch");
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    device.fetch();
    expect_right(r);
  }
  cuda::check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

TEST_F(Sm90HeadMasks, WhatCannotBePreparedIsRefused) {
  const AttnShape shape{64, 64, 4, 4, 64, 64, DType::kBFloat16};
  const std::vector<AttnSlice> slices{AttnSlice::full({0, 64}, {0, 64})};
  const std::vector<std::span<const AttnSlice>> three(3, slices), two(2, slices);
  const auto build = [&](std::span<const std::span<const AttnSlice>> masks) {
    return backend_.build({.masks = masks, .shape = shape});
  };
  EXPECT_THROW(build(three), InvalidArgument);
  const auto slot = backend_.make_slot(shape);
  backend_.install(*slot, build(two));
  EXPECT_TRUE(slot->parts() == MaskPart::kForward);
  EXPECT_THROW(backend_.backward(*slot, {}), InvalidArgument) << "no such part is installed";
}

}  // namespace
}  // namespace tangram
