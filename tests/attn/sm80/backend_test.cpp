// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backend sm80 on a GPU against dense attention in float64, both passes. Inputs are poisoned with NaN wherever no slice
// looks, outputs and workspaces before each call.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm80/sm80_backend.hpp"
#include "attn/sm90/on_device.hpp"
#include "support/relative_error.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using test::OnDevice;
using test::RandomAttention;
using test::RandomConfig;

class Sm80OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!check_sm80().found) GTEST_SKIP() << check_sm80().text;
  }
};

struct Dims {
  int head_dim, head_dim_v;
};
constexpr Dims kDims[] = {{64, 64},   {128, 128}, {32, 32},  {96, 96},   {192, 128},
                          {256, 256}, {24, 8},    {72, 120}, {168, 104}, {200, 256}};

struct Problem {
  const char* name;
  int64_t rows, keys;
  std::vector<AttnSlice> slices;
};

std::vector<AttnSlice> random_blocks(int64_t blocks, int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < blocks; ++q) {
    for (int64_t k = 0; k < blocks; ++k) {
      if (random() % 3 == 0)
        slices.push_back(AttnSlice::full({q * size, q * size + size}, {k * size, k * size + size}));
    }
  }
  return slices;
}

std::vector<Problem> problems() {
  return {
      {"causal", 500, 500, {AttnSlice::causal({0, 500}, {0, 500})}},
      {"full, keys of no whole tile", 200, 777, {AttnSlice::full({0, 200}, {0, 777})}},
      {"window", 600, 600, {{{0, 600}, {0, 600}, -150, 0}}},
      {"documents",
       700,
       700,
       {AttnSlice::causal({0, 130}, {0, 130}), AttnSlice::full({130, 300}, {130, 300}),
        AttnSlice::causal({300, 333}, {300, 333}), AttnSlice::full({400, 640}, {340, 660})}},
      {"short", 70, 400, {AttnSlice::full({0, 5}, {3, 20}), AttnSlice::full({50, 60}, {100, 101})}},
      {"blocks of 40", 400, 400, random_blocks(10, 40, 1)},
      {"few rows of many keys", 24, 6000, {AttnSlice::causal({0, 24}, {0, 6000})}},
      {"nothing", 100, 100, {}},
      {"no keys", 100, 0, {}},
  };
}

double bound(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return 1e-5;
    case DType::kFloat16: return 1.5e-3;
    case DType::kBFloat16: return 6e-3;
  }
  return 0;
}

/// Fills with NaN the memory in which calls compute, as an earlier call may have left it.
void poison_workspace(const Sm80Backend& backend, const MaskSlot& slot) {
  const int64_t bytes =
      std::max(backend.workspace_bytes(slot, AttnPass::kForward), backend.workspace_bytes(slot, AttnPass::kBackward));
  const cuda::Workspace::Lease lease = cuda::workspace_of_current_device().acquire(static_cast<size_t>(bytes), nullptr);
  if (bytes > 0) cuda::check(cudaMemset(lease.data(), 0xff, static_cast<size_t>(bytes)), "cudaMemset");
  test::wait_for_device();
}

void expect_close(const HostTensor& got, const std::vector<double>& want, int heads, int dim, double most,
                  const char* what) {
  EXPECT_LE(support::relative_error(got, want, heads, dim), most) << what;
}

/// Both passes, deterministic ones twice and to the bit.
void expect_agrees(const RandomConfig& config, const std::vector<AttnSlice>& slices, unsigned seed) {
  const AttnShape& s = config.shape;
  const Sm80Backend backend;
  RandomAttention r = test::make_random(config, slices, seed);
  const reference::DenseResult expected = reference::dense_attention(r.problem);
  const std::unique_ptr<MaskSlot> slot = make_mask_slot(backend, slices, s);
  OnDevice device(r);
  std::vector<char> first;
  for (const bool deterministic : {false, true, true}) {
    SCOPED_TRACE(deterministic ? "deterministic" : "in any order");
    device.poison_outputs();
    poison_workspace(backend, *slot);
    device.forward.options.deterministic = device.backward.options.deterministic = deterministic;
    backend.forward(*slot, device.forward);
    backend.backward(*slot, device.backward);
    test::wait_for_device();
    if (deterministic) {
      const std::vector<char> bytes = device.output_bytes();
      if (!first.empty()) {
        EXPECT_EQ(bytes, first);
      }
      first = bytes;
    }
    device.fetch();
    expect_close(r.out, expected.out, s.num_heads_q, s.head_dim_v, bound(s.dtype), "out");
    expect_close(r.dq, expected.dq, s.num_heads_q, s.head_dim, bound(s.dtype), "dq");
    expect_close(r.dk, expected.dk, s.num_heads_kv, s.head_dim, bound(s.dtype), "dk");
    expect_close(r.dv, expected.dv, s.num_heads_kv, s.head_dim_v, bound(s.dtype), "dv");
    test::expect_logits(r, expected);
    for (size_t i = 0; i < r.dsink.size() && config.seqlen_sink > 0; ++i) {
      EXPECT_NEAR(r.dsink[i], expected.dsink[i], 1e-2 * (1 + std::abs(expected.dsink[i]))) << "dsink " << i;
    }
  }
}

/// `dtype` of a case by its index.
template <typename DTypeOf>
void expect_problems_agree(std::span<const Dims> of, const DTypeOf& dtype_of) {
  const std::pair<int, int> heads[] = {{4, 2}, {2, 2}, {6, 1}, {8, 1}, {10, 2}};
  unsigned index = 0;
  for (const Dims& dims : of) {
    for (const Problem& problem : problems()) {
      RandomConfig config;
      const auto [heads_q, heads_kv] = heads[index % 5];
      const DType dtype = dtype_of(index);
      config.shape = {problem.rows, problem.keys, heads_q, heads_kv, dims.head_dim, dims.head_dim_v, dtype};
      config.softcap = index % 4 == 2 ? 5.0f : 0.0f;
      config.seqlen_sink = index % 4 == 3 ? 2 : 0;
      config.sink_layout = index % 8 == 3 ? SinkLayout::kSsh : SinkLayout::kSh;
      config.strided = index % 2 == 1;
      config.gap = 8;
      config.out_dtype = index % 5 < 3 ? dtype : DType::kFloat32;
      config.grad_dtype = index % 7 < 4 ? dtype : DType::kFloat32;
      SCOPED_TRACE(testing::Message() << problem.name << ", head dims " << dims.head_dim << " and " << dims.head_dim_v
                                      << ", case " << index);
      expect_agrees(config, problem.slices, index);
      if (testing::Test::HasFatalFailure()) return;
      ++index;
    }
  }
}

TEST_F(Sm80OnDevice, AgreesWithFloat64) {
  expect_problems_agree(kDims, [](unsigned index) { return index % 3 == 1 ? DType::kFloat16 : DType::kBFloat16; });
}
TEST_F(Sm80OnDevice, Float32AgreesWithFloat64) {
  constexpr Dims kOfFloat32[] = {{64, 64}, {128, 128}, {72, 120}, {256, 256}};
  expect_problems_agree(kOfFloat32, [](unsigned) { return DType::kFloat32; });
}

/// A second call adds to what the first has left; the backward pass takes delta in the place of out.
TEST_F(Sm80OnDevice, AccumulatesAndTakesDelta) {
  const Sm80Backend backend;
  for (const Dims& dims : {Dims{64, 64}, Dims{128, 128}}) {
    RandomConfig config;
    config.shape = {300, 400, 4, 2, dims.head_dim, dims.head_dim_v, DType::kBFloat16};
    const std::vector<AttnSlice> all{AttnSlice::full({0, 300}, {0, 250}), AttnSlice::full({50, 300}, {250, 400})};
    RandomAttention r = test::make_random(config, all, 3);
    const reference::DenseResult expected = reference::dense_attention(r.problem);
    OnDevice device(r);
    std::vector<std::unique_ptr<MaskSlot>> slots;
    for (const AttnSlice& slice : all) slots.push_back(make_mask_slot(backend, {&slice, 1}, config.shape));
    for (const auto& slot : slots) {
      device.forward.accumulate = slot != slots[0];
      backend.forward(*slot, device.forward);
    }
    test::wait_for_device();
    device.fetch();
    std::vector<float> delta(r.lse.size());
    for (size_t i = 0; i < delta.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / 4;
      const int head = static_cast<int>(i) % 4;
      for (int d = 0; d < dims.head_dim_v; ++d) delta[i] += r.out.at(row, head, d) * r.dout.at(row, head, d);
    }
    const cuda::DeviceBuffer on_device = test::upload(delta);
    device.backward.delta = on_device.as<float>();
    for (const auto& slot : slots) {
      device.backward.accumulate_dq = device.backward.accumulate_dkv = slot != slots[0];
      backend.backward(*slot, device.backward);
    }
    test::wait_for_device();
    device.fetch();
    expect_close(r.out, expected.out, 4, dims.head_dim_v, bound(DType::kBFloat16), "out");
    expect_close(r.dq, expected.dq, 4, dims.head_dim, bound(DType::kBFloat16), "dq");
    expect_close(r.dk, expected.dk, 2, dims.head_dim, bound(DType::kBFloat16), "dk");
    expect_close(r.dv, expected.dv, 2, dims.head_dim_v, bound(DType::kBFloat16), "dv");
  }
}

TEST_F(Sm80OnDevice, CallsCanBeCaptured) {
  const Sm80Backend backend;
  RandomConfig config;
  config.shape = {500, 500, 4, 2, 128, 128, DType::kBFloat16};
  const std::vector<AttnSlice> slices{AttnSlice::causal({0, 500}, {0, 500})};
  RandomAttention r = test::make_random(config, slices, 5);
  const reference::DenseResult expected = reference::dense_attention(r.problem);
  const std::unique_ptr<MaskSlot> slot = make_mask_slot(backend, slices, config.shape);
  OnDevice device(r);
  device.forward.max_logits = nullptr;  // which would have references follow every maximum
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const auto calls = [&] {
    backend.forward(*slot, device.forward, stream);
    backend.backward(*slot, device.backward, stream);
  };
  calls();  // loads kernels
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  calls();
  cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cuda::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (int i = 0; i < 2; ++i) {
    device.poison_outputs();
    cuda::check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    device.fetch();
    expect_close(r.out, expected.out, 4, 128, bound(DType::kBFloat16), "out");
    expect_close(r.dq, expected.dq, 4, 128, bound(DType::kBFloat16), "dq");
    expect_close(r.dk, expected.dk, 2, 128, bound(DType::kBFloat16), "dk");
  }
  cuda::check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

}  // namespace
}  // namespace tangram
