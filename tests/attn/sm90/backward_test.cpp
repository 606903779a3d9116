// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The Hopper backward pass against dense attention in float64. Needs a Hopper GPU; skipped elsewhere.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm90/backward/work_list.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/device_buffer.hpp"
#include "plan/tile_list.hpp"

namespace tangram {
namespace {

using cuda::DeviceBuffer;
using test::make_random;
using test::RandomAttention;
using test::RandomConfig;

bool have_hopper() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0;
}

TileList transposed_tiles(const std::vector<AttnSlice>& slices, const AttnShape& shape) {
  std::vector<AttnSlice> keys_first;
  for (const AttnSlice& slice : slices) keys_first.push_back(transposed(slice));
  return build_tile_list(keys_first, shape.seqlen_k, shape.seqlen_q, sm90::backward::kTileShape);
}

/// The tensors of a problem on the device. Outputs start as what the host tensors hold (NaN).
struct OnDevice {
  std::vector<DeviceBuffer> buffers;
  AttnBackwardArgs args;

  template <class View>
  void move(View& view, const HostTensor& host) {
    buffers.push_back(DeviceBuffer::copy_of(host.view().data, static_cast<size_t>(host.bytes())));
    view.data = buffers.back().template as<void>();
  }
  float* move(const std::vector<float>& values) {
    buffers.push_back(DeviceBuffer::copy_of(values.data(), values.size() * sizeof(float)));
    return buffers.back().as<float>();
  }

  explicit OnDevice(RandomAttention& r) : args(r.backward_args()) {
    move(args.q, r.q), move(args.k, r.k), move(args.v, r.v), move(args.out, r.out), move(args.dout, r.dout);
    move(args.dq, r.dq), move(args.dk, r.dk), move(args.dv, r.dv);
    args.lse = move(r.lse);
    if (args.dsink != nullptr) {
      args.sink.data = move(r.sink);
      args.dsink = move(r.dsink);
    }
  }
  static void fetch(void* to, const void* from, int64_t bytes) {
    ASSERT_EQ(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost), cudaSuccess);
  }
  void fetch(RandomAttention& r) {
    fetch(r.dq.view().data, args.dq.data, r.dq.bytes());
    fetch(r.dk.view().data, args.dk.data, r.dk.bytes());
    fetch(r.dv.view().data, args.dv.data, r.dv.bytes());
    if (args.dsink != nullptr) {
      fetch(r.dsink.data(), args.dsink, static_cast<int64_t>(r.dsink.size() * sizeof(float)));
    }
  }
};

/// ||got - want|| / ||want||; infinite when anything is NaN.
double relative_error(const HostTensor& got, const std::vector<double>& want, int heads, int dim) {
  double error = 0, norm = 1e-30;
  size_t i = 0;
  for (int64_t row = 0; row < got.rows(); ++row) {
    for (int h = 0; h < heads; ++h) {
      for (int d = 0; d < dim; ++d, ++i) {
        const double difference = got.at(row, h, d) - want[i];
        error += difference * difference;
        norm += want[i] * want[i];
      }
    }
  }
  return std::isnan(error) ? INFINITY : std::sqrt(error / norm);
}

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
  // Rows and keys that nobody covers, overlapping ranges, bands on both sides.
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
      {"documents_64", shape_of(307, 307, 4, 2, 64), documents},
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
      {"two_keys", shape_of(70, 2, 1, 1), {AttnSlice::full({0, 70}, {0, 2})}},
      {"nothing", shape_of(70, 130, 2, 1), {}},
  };
}

class Sm90Backward : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!have_hopper()) GTEST_SKIP() << "no Hopper GPU";
  }
};

std::unique_ptr<PreparedMask> prepare(const Sm90Backend& backend, const RandomAttention& r) {
  const AttnShape& shape = r.config.shape;
  const TileList tiles = build_tile_list(r.slices, shape.seqlen_q, shape.seqlen_k, *backend.tile_shape(shape));
  std::unique_ptr<PreparedMask> mask = backend.prepare(r.slices, shape, &tiles);
  backend.prepare_backward(*mask, transposed_tiles(r.slices, shape));
  return mask;
}

/// The problem, and what float64 says; out and lse are those of the reference.
reference::DenseResult solve(RandomAttention& r) {
  reference::DenseResult expected = reference::dense_attention(r.problem);
  const AttnShape& s = r.config.shape;
  size_t i = 0;
  for (int64_t row = 0; row < s.seqlen_q; ++row) {
    for (int h = 0; h < s.num_heads_q; ++h) {
      for (int d = 0; d < s.head_dim_v; ++d, ++i) r.out.set(row, h, d, static_cast<float>(expected.out[i]));
    }
  }
  for (size_t j = 0; j < r.lse.size(); ++j) r.lse[j] = static_cast<float>(expected.lse[j]);
  return expected;
}

// P and dS are rounded to the 16-bit dtype before they are multiplied, and gradients on output: errors of 2^-9
// (bfloat16) or 2^-12 (float16) a factor, which the norm averages to about 2.5e-3 and 3.2e-4. Naive passes in these
// dtypes are at 1.2e-2 and 1.5e-3.
double tolerance(DType dtype) { return dtype == DType::kFloat16 ? 8e-4 : 5e-3; }

TEST_P(Sm90Backward, AgreesWithDenseAttentionInFloat64) {
  const Sm90Backend backend;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    RandomConfig config;
    config.shape = c.shape;
    config.softcap = c.softcap;
    config.seqlen_sink = c.seqlen_sink;
    config.sink_layout = c.sink_layout;
    config.grad_dtype = c.grad_dtype;
    RandomAttention r = make_random(config, c.slices, 17);
    const reference::DenseResult expected = solve(r);
    const auto mask = prepare(backend, r);
    OnDevice device(r);
    device.args.options.deterministic = GetParam();
    backend.backward(*mask, device.args);
    device.fetch(r);
    const AttnShape& s = c.shape;
    EXPECT_LT(relative_error(r.dq, expected.dq, s.num_heads_q, s.head_dim), tolerance(s.dtype));
    EXPECT_LT(relative_error(r.dk, expected.dk, s.num_heads_kv, s.head_dim), tolerance(s.dtype));
    EXPECT_LT(relative_error(r.dv, expected.dv, s.num_heads_kv, s.head_dim), tolerance(s.dtype));
    for (size_t i = 0; i < r.dsink.size(); ++i) EXPECT_NEAR(r.dsink[i], expected.dsink[i], 2e-2) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Sm90Backward, testing::Values(false, true),
                         [](const auto& tested) { return tested.param ? "deterministic" : "fast"; });

TEST_F(Sm90Backward, RepeatsBitwiseWhenDeterministicOnAnyNumberOfMultiprocessors) {
  RandomConfig config;
  config.shape = shape_of(700, 700, 8, 2);
  RandomAttention r = make_random(config, {AttnSlice::causal({0, 700}, {0, 700})}, 5);
  solve(r);
  const Sm90Backend backend;
  const auto mask = prepare(backend, r);
  int num_sms = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  OnDevice device(r);
  device.args.options.deterministic = true;
  std::vector<char> first;
  for (int launch = 0; launch < 1000; ++launch) {
    // With two CTAs, almost every item waits for one that the same CTA has dealt with before.
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

TEST_F(Sm90Backward, AccumulatesIntoFloat32) {
  RandomConfig config;
  config.shape = shape_of(300, 300, 4, 1);
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
  EXPECT_LT(relative_error(r.dq, expected.dq, 4, 128), 5e-3);
  EXPECT_LT(relative_error(r.dk, expected.dk, 1, 128), 5e-3);
  EXPECT_LT(relative_error(r.dv, expected.dv, 1, 128), 5e-3);
}

}  // namespace
}  // namespace tangram
