// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The Hopper backward pass against dense attention in float64. Needs a Hopper GPU; skipped elsewhere.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attn/sm90/backward_problem.hpp"
#include "attn/sm90/head_dims.hpp"

namespace tangram {
namespace {

using test::HeadDims;
using test::kHeadDims;
using test::make_random;
using test::RandomAttention;
using test::RandomConfig;
using test::values_of;
using test::sm90_backward::have_hopper;
using test::sm90_backward::OnDevice;
using test::sm90_backward::prepare;
using test::sm90_backward::relative_error;
using test::sm90_backward::solve;
using test::sm90_backward::tolerance;

struct Case {
  std::string name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
  float softcap = 0;
  int64_t seqlen_sink = 0;
  SinkLayout sink_layout = SinkLayout::kSh;
  DType grad_dtype = DType::kBFloat16;
};

AttnShape shape_of(int64_t q, int64_t k, int heads_q, int heads_kv, int dim = 128, DType dtype = DType::kBFloat16) {
  return {q, k, heads_q, heads_kv, dim, dim, dtype};
}

std::vector<Case> cases() {
  const std::vector<AttnSlice> documents{
      AttnSlice::causal({0, 100}, {0, 100}), AttnSlice::causal({100, 130}, {100, 130}),
      AttnSlice::full({130, 300}, {130, 300}), AttnSlice::full({300, 307}, {300, 307})};
  // Rows and keys that no slice covers, overlapping ranges, bands on both sides.
  const std::vector<AttnSlice> holes{AttnSlice::full({10, 100}, {20, 200}),
                                     {{150, 250}, {220, 333}, kOpenMinDiag, 40},
                                     {{150, 250}, {0, 200}, -120, kOpenMaxDiag}};
  const std::vector<AttnSlice> window{{{0, 320}, {0, 320}, -64, 0}};
  return {
      {"full", shape_of(256, 256, 2, 1), {AttnSlice::full({0, 256}, {0, 256})}},
      {"ragged", shape_of(200, 301, 2, 2), {AttnSlice::full({0, 200}, {0, 301})}},
      {"causal", shape_of(300, 300, 4, 1), {AttnSlice::causal({0, 300}, {0, 300})}},
      {"documents", shape_of(307, 307, 4, 2), documents},
      {"documents_f16", shape_of(307, 307, 4, 2, 128, DType::kFloat16), documents, 0, 0, SinkLayout::kSh,
       DType::kFloat16},
      // Kernels of head_dim 64: work tiles of one head or of two, of odd numbers of steps, of one, and of none.
      {"full_64", shape_of(256, 256, 2, 1, 64), {AttnSlice::full({0, 256}, {0, 256})}},
      {"ragged_64", shape_of(150, 301, 3, 3, 64), {AttnSlice::full({0, 150}, {0, 301})}},
      {"causal_64", shape_of(300, 300, 4, 1, 64), {AttnSlice::causal({0, 300}, {0, 300})}},
      {"documents_64", shape_of(307, 307, 4, 2, 64), documents},
      {"holes_64", shape_of(290, 390, 2, 1, 64), holes},
      {"holes_f16_64", shape_of(290, 390, 1, 1, 64, DType::kFloat16), holes, 0, 0, SinkLayout::kSh, DType::kFloat16},
      {"window_row_sink_64", shape_of(320, 320, 2, 2, 64), window, 0, 1, SinkLayout::kSsh},
      {"two_keys_64", shape_of(60, 2, 1, 1, 64), {AttnSlice::full({0, 60}, {0, 2})}},
      {"nothing_64", shape_of(70, 130, 2, 1, 64), {}},
      {"holes", shape_of(290, 390, 2, 1), holes},
      {"holes_sink", shape_of(290, 390, 2, 1), holes, 0, 2},
      {"window_row_sink", shape_of(320, 320, 2, 2), window, 0, 1, SinkLayout::kSsh},
      {"softcap", shape_of(300, 300, 4, 2), {AttnSlice::causal({0, 300}, {0, 300})}, 3.0f},
      {"softcap_64", shape_of(300, 300, 4, 2, 64), {AttnSlice::causal({0, 300}, {0, 300})}, 3.0f},
      {"float32",
       shape_of(300, 300, 4, 1),
       {AttnSlice::causal({0, 300}, {0, 300})},
       0,
       0,
       SinkLayout::kSh,
       DType::kFloat32},
      // Kernels for any head dimensions of a class.
      {"causal_8", shape_of(300, 300, 4, 1, 8), {AttnSlice::causal({0, 300}, {0, 300})}},
      {"causal_32", shape_of(300, 300, 4, 1, 32), {AttnSlice::causal({0, 300}, {0, 300})}},
      {"softcap_32", shape_of(300, 300, 4, 2, 32), {AttnSlice::causal({0, 300}, {0, 300})}, 3.0f},
      {"holes_sink_40", shape_of(290, 390, 2, 1, 40), holes, 0, 2},
      {"documents_72", shape_of(307, 307, 4, 2, 72), documents},
      {"ragged_96", shape_of(200, 301, 2, 2, 96), {AttnSlice::full({0, 200}, {0, 301})}},
      {"window_row_sink_96", shape_of(320, 320, 2, 2, 96), window, 0, 1, SinkLayout::kSsh},
      {"float32_112",
       shape_of(300, 300, 4, 1, 112),
       {AttnSlice::causal({0, 300}, {0, 300})},
       0,
       0,
       SinkLayout::kSh,
       DType::kFloat32},
      {"softcap_120", shape_of(300, 300, 4, 2, 120), {AttnSlice::causal({0, 300}, {0, 300})}, 3.0f},
      {"causal_128_and_64", {300, 300, 4, 1, 128, 64, DType::kBFloat16}, {AttnSlice::causal({0, 300}, {0, 300})}},
      {"causal_192_and_128", {300, 300, 4, 1, 192, 128, DType::kBFloat16}, {AttnSlice::causal({0, 300}, {0, 300})}},
      {"holes_192_and_128", {290, 390, 2, 1, 192, 128, DType::kFloat16}, holes, 0, 2, SinkLayout::kSh, DType::kFloat16},
      {"softcap_136_and_104", {307, 307, 4, 2, 136, 104, DType::kBFloat16}, documents, 3.0f},
      {"nothing_192_and_128", {70, 130, 2, 1, 192, 128, DType::kBFloat16}, {}},
      {"causal_256", shape_of(300, 300, 4, 1, 256), {AttnSlice::causal({0, 300}, {0, 300})}},
      {"holes_256", shape_of(290, 390, 2, 1, 256), holes},
      {"float32_200", shape_of(307, 307, 4, 2, 200), documents, 0, 2, SinkLayout::kSh, DType::kFloat32},
      {"softcap_256", shape_of(300, 300, 4, 2, 256), {AttnSlice::causal({0, 300}, {0, 300})}, 3.0f},
      {"two_keys", shape_of(70, 2, 1, 1), {AttnSlice::full({0, 70}, {0, 2})}},
      {"nothing", shape_of(70, 130, 2, 1), {}},
  };
}

/// For every class: gradients in float32 and in its dtype, sinks of both kinds, softcap, fully masked rows and keys.
std::vector<Case> cases_of(HeadDims dims) {
  const std::vector<AttnSlice> holes{AttnSlice::full({10, 100}, {20, 130}), {{110, 180}, {90, 240}, -60, 70}};
  const std::vector<AttnSlice> causal{AttnSlice::causal({0, 200}, {0, 260})};
  const AttnShape shape = test::shape_of(200, 260, 4, 2, dims),
                  half = test::shape_of(200, 260, 2, 2, dims, DType::kFloat16);
  return {{"causal", shape, causal},
          {"holes, float32, sinks", shape, holes, 0, 2, SinkLayout::kSh, DType::kFloat32},
          {"holes, float16, sinks of rows", half, holes, 0, 1, SinkLayout::kSsh, DType::kFloat16},
          {"softcap", shape, causal, 3.0f},
          {"softcap, float16, float32, sinks", half, holes, 3.0f, 1, SinkLayout::kSh, DType::kFloat32}};
}

RandomAttention problem_of(const Case& c) {
  RandomConfig config;
  config.shape = c.shape;
  config.softcap = c.softcap;
  config.seqlen_sink = c.seqlen_sink;
  config.sink_layout = c.sink_layout;
  config.grad_dtype = c.grad_dtype;
  return make_random(config, c.slices, 17);
}

class Sm90Backward : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!have_hopper()) GTEST_SKIP() << "no Hopper GPU";
  }
};

void expect_gradients(const RandomAttention& r, const reference::DenseResult& expected) {
  const AttnShape& s = r.config.shape;
  EXPECT_LT(relative_error(r.dq, expected.dq, s.num_heads_q, s.head_dim), tolerance(s.dtype));
  EXPECT_LT(relative_error(r.dk, expected.dk, s.num_heads_kv, s.head_dim), tolerance(s.dtype));
  EXPECT_LT(relative_error(r.dv, expected.dv, s.num_heads_kv, s.head_dim_v), tolerance(s.dtype));
  for (size_t i = 0; i < r.dsink.size(); ++i) EXPECT_NEAR(r.dsink[i], expected.dsink[i], 2e-2) << i;
}

/// rowsum(dout * out) in place of out.
std::vector<float> delta_of(const RandomAttention& r, const reference::DenseResult& expected) {
  const AttnShape& s = r.config.shape;
  std::vector<float> delta(r.lse.size());
  for (size_t i = 0; i < expected.out.size(); ++i) {
    if (expected.out[i] == 0) continue;  // rows without keys have poison for dout
    const auto at = static_cast<int64_t>(i) / s.head_dim_v, row = at / s.num_heads_q;
    const double dout = r.dout.at(row, static_cast<int>(at % s.num_heads_q), static_cast<int>(i % s.head_dim_v));
    delta[static_cast<size_t>(at)] += static_cast<float>(expected.out[i] * dout);
  }
  return delta;
}

void expect_close(const Case& c, bool deterministic, bool with_delta) {
  SCOPED_TRACE(c.name);
  const Sm90Backend backend;
  RandomAttention r = problem_of(c);
  const reference::DenseResult expected = solve(r);
  const auto mask = prepare(backend, r);
  OnDevice device(r);
  device.args.options.deterministic = deterministic;
  if (with_delta) {
    device.args.out = {};
    device.args.delta = device.move(delta_of(r, expected));
  }
  backend.backward(*mask, device.args);
  device.fetch(r);
  expect_gradients(r, expected);
}

TEST_P(Sm90Backward, AgreesWithDenseAttentionInFloat64) {
  for (const Case& c : cases()) expect_close(c, GetParam(), false);
}

TEST_P(Sm90Backward, AgreesWithDenseAttentionInFloat64ForEveryClass) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    for (const Case& c : cases_of(dims)) expect_close(c, GetParam(), false);
  }
}

TEST_P(Sm90Backward, GivenDeltaReplacesOut) {
  for (const Case& c : cases()) expect_close(c, GetParam(), true);
}

TEST_P(Sm90Backward, RowsWithoutKeysAndKeysWithoutQueriesGetExactZeros) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    const Sm90Backend backend;
    // Whole tiles and single rows that no slice covers, on both sides, whose inputs are NaN; outputs hold NaN before.
    const std::vector<AttnSlice> slices{AttnSlice::causal({130, 331}, {70, 300}),
                                        AttnSlice::full({500, 517}, {410, 411})};
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      RandomConfig config;
      config.shape = test::shape_of(700, 600, 4, 2, dims);
      config.grad_dtype = dtype;
      RandomAttention r = make_random(config, slices, 23);
      solve(r);
      const auto mask = prepare(backend, r);
      OnDevice device(r);
      device.args.options.deterministic = GetParam();
      backend.backward(*mask, device.args);
      device.fetch(r);
      const auto covered = [&](const Range AttnSlice::* side, int64_t row) {
        return (slices[0].*side).contains(row) || (slices[1].*side).contains(row);
      };
      const auto expect_zeros = [&](const char* name, const HostTensor& gradient, const Range AttnSlice::* side) {
        for (int64_t row = 0; row < gradient.rows(); ++row) {
          for (int d = 0; d < gradient.dim() && !covered(side, row); ++d) {
            ASSERT_EQ(gradient.at(row, 0, d), 0.0) << name << " row " << row;
            ASSERT_EQ(gradient.at(row, gradient.heads() - 1, d), 0.0) << name << " row " << row;
          }
        }
      };
      expect_zeros("dq", r.dq, &AttnSlice::q_range);
      expect_zeros("dk", r.dk, &AttnSlice::k_range);
      expect_zeros("dv", r.dv, &AttnSlice::k_range);
    }
  }
}

// The gradient of sum(out * dout), element by element: central differences of the float64 forward pass, whose own
// error (step^2) is far below what the kernel rounds. Shares no formula with the backward pass.
TEST_P(Sm90Backward, AgreesWithFiniteDifferences) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    RandomConfig config;
    config.shape = test::shape_of(9, 11, 2, 1, dims);
    config.poison = false;
    RandomAttention r = make_random(config, {AttnSlice::causal({0, 9}, {0, 11})}, 23);
    solve(r);
    const Sm90Backend backend;
    const auto mask = prepare(backend, r);
    OnDevice device(r);
    device.args.options.deterministic = GetParam();
    backend.backward(*mask, device.args);
    device.fetch(r);
    const std::vector<double> dout = values_of(r.dout_view(), r.dout);
    const auto loss = [&] {
      const std::vector<double> out = reference::dense_attention(r.problem).out;
      double sum = 0;
      for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
      return sum;
    };
    constexpr double kStep = 1e-4;
    constexpr size_t kStride = 7;  // no multiple of it is a multiple of the head dimension
    const auto check = [&](const char* name, std::vector<double>& input, const std::vector<double>& gradient) {
      ASSERT_EQ(input.size(), gradient.size());
      double error = 0, norm = 0;
      for (size_t i = 0; i < input.size(); i += kStride) {
        const double value = input[i];
        input[i] = value + kStep;
        const double above = loss();
        input[i] = value - kStep;
        const double difference = (above - loss()) / (2 * kStep);
        input[i] = value;
        error += (gradient[i] - difference) * (gradient[i] - difference);
        norm += difference * difference;
      }
      EXPECT_LT(std::sqrt(error / norm), tolerance(DType::kBFloat16)) << name;
    };
    check("dq", r.problem.q, values_of(r.dq_view(), r.dq));
    check("dk", r.problem.k, values_of(r.dk_view(), r.dk));
    check("dv", r.problem.v, values_of(r.dv_view(), r.dv));
  }
}

// Capturing fails on anything that allocates or waits, and it is the first call of the mask.
TEST_P(Sm90Backward, CanBeCapturedByAGraphFromTheFirstCall) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    RandomConfig config;
    config.shape = test::shape_of(300, 300, 4, 1, dims);
    config.seqlen_sink = 1;
    RandomAttention r = make_random(config, {AttnSlice::causal({0, 300}, {0, 300})}, 31);
    const reference::DenseResult expected = solve(r);
    const Sm90Backend backend;
    const auto mask = prepare(backend, r);
    OnDevice device(r);
    device.args.options.deterministic = GetParam();
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    const auto capture = [&](MaskSlot& of, cudaGraph_t& graph) {
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
      backend.backward(of, device.args, stream);
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    };
    // For the first kernels that a process captures the driver takes memory, whichever kernels they are: this test
    // failed where it was the first to run.
    cudaGraph_t of_another = nullptr, graph = nullptr;
    ASSERT_NO_FATAL_FAILURE(capture(*prepare(backend, r), of_another));
    EXPECT_EQ(cudaGraphDestroy(of_another), cudaSuccess);
    size_t free_before = 0, free_after = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(capture(*mask, graph));
    ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
    // For later graphs the driver may take memory for more nodes; global capture mode shows that nothing is allocated.
    if (dims.is_128()) {
      EXPECT_EQ(free_before, free_after);
    }
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (int launch = 0; launch < 3; ++launch) ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    device.fetch(r);
    expect_gradients(r, expected);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Sm90Backward, testing::Values(false, true),
                         [](const auto& tested) { return tested.param ? "deterministic" : "fast"; });

TEST_F(Sm90Backward, RepeatsBitwiseWhenDeterministicOnAnyNumberOfMultiprocessors) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    RandomConfig config;
    config.shape = dims.is_128() ? test::shape_of(700, 700, 8, 2, dims) : test::shape_of(700, 700, 4, 2, dims);
    RandomAttention r = make_random(config, {AttnSlice::causal({0, 700}, {0, 700})}, 5);
    solve(r);
    const Sm90Backend backend;
    const auto mask = prepare(backend, r);
    int num_sms = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    OnDevice device(r);
    device.args.options.deterministic = true;
    std::vector<char> first;
    for (int launch = 0; launch < (dims.is_128() ? 1000 : 100); ++launch) {
      // With two CTAs, almost every work tile waits for one that the same CTA computed before.
      device.args.options.sm_margin = launch % 10 == 1 ? num_sms - 2 : 0;
      backend.backward(*mask, device.args);
      device.fetch(r);
      std::vector<char> bytes;
      for (HostTensor* tensor : {&r.dq, &r.dk, &r.dv}) {
        const char* data = tensor->data<char>();
        bytes.insert(bytes.end(), data, data + tensor->bytes());
      }
      if (launch == 0) first = bytes;
      ASSERT_EQ(std::memcmp(first.data(), bytes.data(), first.size()), 0) << "launch " << launch;
    }
  }
}

// The tensor cores add lse / softmax_scale to q.k: it must neither overflow nor lose digits. Beside probabilities that
// do not depend on it, a scale of 1e-38 leaves nothing of dq and dk.
TEST_F(Sm90Backward, ScalesFromTheLeastToLargeOnes) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    const Sm90Backend backend;
    for (const float scale : {1e-38f, 1e-20f, 0.002f, 0.5f}) {
      SCOPED_TRACE(scale);
      RandomConfig config;
      config.shape = test::shape_of(200, 300, 4, 2, dims);
      config.scale = scale;
      RandomAttention r = make_random(config, {AttnSlice::causal({0, 200}, {0, 300})}, 8);
      const reference::DenseResult expected = solve(r);
      const auto mask = prepare(backend, r);
      OnDevice device(r);
      backend.backward(*mask, device.args);
      device.fetch(r);
      EXPECT_LT(relative_error(r.dv, expected.dv, 2, dims.v), 5e-3);
      if (scale > 1e-30f) {
        EXPECT_LT(relative_error(r.dq, expected.dq, 4, dims.qk), 5e-3);
        EXPECT_LT(relative_error(r.dk, expected.dk, 2, dims.qk), 5e-3);
      } else {
        EXPECT_LT(relative_error(r.dq, std::vector<double>(expected.dq.size()), 4, dims.qk), 1e-3);
        EXPECT_LT(relative_error(r.dk, std::vector<double>(expected.dk.size()), 2, dims.qk), 1e-3);
      }
    }
  }
}

// Tiles of keys that no query sees have a step without loads. With few CTAs they come between others, head by head: a
// barrier that they left out let the steps after them wait for loads long done, or not wait at all.
TEST_P(Sm90Backward, FullyMaskedKeysAmongOthersDoNotStopTheKernel) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    RandomConfig config;
    config.shape = test::shape_of(512, 512, dims.is_128() ? 8 : 4, 2, dims);
    RandomAttention r =
        make_random(config, {AttnSlice::full({0, 512}, {0, 128}), AttnSlice::full({256, 512}, {256, 384})}, 9);
    const reference::DenseResult expected = solve(r);
    const Sm90Backend backend;
    const auto mask = prepare(backend, r);
    int num_sms = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    for (const int num_ctas : {1, 2, 3, 7}) {
      SCOPED_TRACE(num_ctas);
      OnDevice device(r);
      device.args.options.deterministic = GetParam();
      device.args.options.sm_margin = num_sms - num_ctas;
      backend.backward(*mask, device.args);
      device.fetch(r);
      expect_gradients(r, expected);
    }
  }
}

TEST_F(Sm90Backward, AccumulatesIntoFloat32) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    RandomConfig config;
    config.shape = test::shape_of(300, 300, 4, 1, dims);
    RandomAttention r = make_random(config, {AttnSlice::causal({0, 300}, {0, 300})}, 6);
    reference::DenseResult expected = solve(r);
    for (HostTensor* tensor : {&r.dq, &r.dk, &r.dv}) tensor->fill(1.0f);
    for (std::vector<double>* values : {&expected.dq, &expected.dk, &expected.dv}) {
      for (double& value : *values) value += 1.0;
    }
    const Sm90Backend backend;
    const auto mask = prepare(backend, r);
    OnDevice device(r);
    device.args.accumulate_dq = device.args.accumulate_dkv = true;
    backend.backward(*mask, device.args);
    device.fetch(r);
    expect_gradients(r, expected);
  }
}

}  // namespace
}  // namespace tangram
