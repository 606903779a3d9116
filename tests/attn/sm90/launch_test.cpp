// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How calls of the Hopper backend behave as launches: captured in a CUDA graph, repeated, refused. Needs a Hopper GPU;
// skipped elsewhere.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "support/message_of.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using support::message_of;
using test::HeadDims;
using test::make_random;
using test::OnDevice;
using test::prepare_sm90;
using test::RandomAttention;
using test::RandomConfig;
using ::testing::HasSubstr;

class Sm90Launch : public test::Sm90OnStream {};
/// Kernels of each class, in a process of their own.
class Sm90LaunchDims : public test::Sm90OnStream, public testing::WithParamInterface<HeadDims> {};
INSTANTIATE_TEST_SUITE_P(Dims, Sm90LaunchDims, test::every_head_dim(), test::name_of_dims);

RandomConfig config_of(int64_t seqlen, int heads_q, int heads_kv, HeadDims dims = {128, 128}) {
  RandomConfig config;
  config.shape = test::shape_of(seqlen, seqlen, heads_q, heads_kv, dims);
  config.grad_dtype = config.out_dtype = DType::kBFloat16;
  config.seqlen_sink = 1;
  return config;
}

void replay(cudaGraphExec_t graph, cudaStream_t stream) {
  cuda::check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

TEST_P(Sm90LaunchDims, TheVeryFirstForwardCanBeCapturedAndReplayed) {
  RandomAttention r = make_random(config_of(700, 8, 2, GetParam()), {AttnSlice::causal({0, 700}, {0, 700})}, 1);
  const Sm90Backend backend;
  const auto mask = prepare_sm90(backend, r.slices, r.config.shape);
  OnDevice device(r);
  cudaGraphExec_t graph =
      capture([&] { backend.forward(*mask, device.forward, stream_); }, cudaStreamCaptureModeGlobal);
  device.poison_outputs();
  replay(graph, stream_);
  const std::vector<char> first = device.output_bytes();
  for (int i = 0; i < 3; ++i) {
    device.poison_outputs();
    replay(graph, stream_);
    EXPECT_TRUE(device.output_bytes() == first) << "replay " << i;
  }
  device.poison_outputs();
  backend.forward(*mask, device.forward, stream_);
  cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  EXPECT_TRUE(device.output_bytes() == first);
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
}

TEST_P(Sm90LaunchDims, AStepCanBeCapturedAfterItsFirstBackward) {
  RandomAttention r = make_random(config_of(500, 4, 2, GetParam()), {AttnSlice::causal({0, 500}, {0, 500})}, 2);
  const Sm90Backend backend;
  const auto mask = prepare_sm90(backend, r.slices, r.config.shape);
  OnDevice device(r);
  device.backward.options.deterministic = true;
  const auto step = [&] {
    backend.forward(*mask, device.forward, stream_);
    backend.backward(*mask, device.backward, stream_);
  };
  step();
  cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  const std::vector<char> expected = device.output_bytes();
  cudaGraphExec_t graph = capture(step, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < 3; ++i) {
    device.poison_outputs();
    replay(graph, stream_);
    EXPECT_TRUE(device.output_bytes() == expected) << "replay " << i;
  }
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
}

TEST_P(Sm90LaunchDims, RepeatedForwardsAreBitwiseEqualOnAnyNumberOfMultiprocessors) {
  for (const int64_t seqlen : {300, 1500}) {
    RandomAttention r = make_random(config_of(seqlen, 8, 1, GetParam()), {{{0, seqlen}, {0, seqlen}, -400, 0}}, 3);
    const Sm90Backend backend;
    const auto mask = prepare_sm90(backend, r.slices, r.config.shape);
    OnDevice device(r);
    std::vector<char> first;
    for (int launch = 0; launch < (GetParam().is_128() ? 1000 : 100); ++launch) {
      device.forward.options.sm_margin = launch % 4 * 43;  // 132 to 3 CTAs
      backend.forward(*mask, device.forward, stream_);
      cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      if (launch == 0) first = device.output_bytes();
      ASSERT_TRUE(device.output_bytes() == first) << "launch " << launch;
    }
  }
}

TEST_F(Sm90Launch, StridesAndAddressesThatTmaCannotReadAreRefusedByName) {
  RandomConfig config = config_of(64, 2, 1);
  config.strided = true;
  config.gap = 8;
  RandomAttention r = make_random(config, {AttnSlice::full({0, 64}, {0, 64})}, 4);
  const Sm90Backend backend;
  const auto mask = prepare_sm90(backend, r.slices, r.config.shape);
  OnDevice device(r);
  const AttnForwardArgs forward = device.forward;
  const AttnBackwardArgs backward = device.backward;
  const auto refuses_forward = [&](const char* text, const std::function<void(AttnForwardArgs&)>& spoil) {
    AttnForwardArgs args = forward;
    spoil(args);
    EXPECT_THAT(message_of([&] { backend.forward(*mask, args, stream_); }), HasSubstr(text));
  };
  const auto refuses_backward = [&](const char* text, const std::function<void(AttnBackwardArgs&)>& spoil) {
    AttnBackwardArgs args = backward;
    spoil(args);
    EXPECT_THAT(message_of([&] { backend.backward(*mask, args, stream_); }), HasSubstr(text));
  };
  refuses_forward("strides of q must be multiples of 16 bytes", [](auto& a) { a.q.row_stride += 4; });
  refuses_forward("strides of k must be multiples of 16 bytes", [](auto& a) { a.k.head_stride += 1; });
  refuses_forward("strides of out must be multiples of 16 bytes", [](auto& a) { a.out.row_stride -= 2; });
  refuses_forward("v must not be null and be aligned to 16 bytes",
                  [](auto& a) { a.v.data = static_cast<const char*>(a.v.data) + 2; });
  refuses_forward("q must have shape [64, 2, 128]", [](auto& a) { a.q.rows = 63; });
  refuses_backward("strides of dout must be multiples of 16 bytes", [](auto& a) { a.dout.row_stride += 4; });
  refuses_backward("strides of dk must be multiples of 16 bytes", [](auto& a) { a.dk.head_stride += 2; });
  refuses_backward("dq must not be null and be aligned to 16 bytes",
                   [](auto& a) { a.dq.data = static_cast<char*>(a.dq.data) + 8; });
  refuses_backward("accumulate_dq needs dq in float32", [](auto& a) { a.accumulate_dq = true; });
  // What was refused has left nothing behind: the right call still works.
  backend.forward(*mask, forward, stream_);
  cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

TEST_F(Sm90Launch, ALaunchThatFailsSaysWhichCallItWas) {
  RandomAttention r = make_random(config_of(64, 2, 1), {AttnSlice::full({0, 64}, {0, 64})}, 5);
  const Sm90Backend backend;
  const auto mask = prepare_sm90(backend, r.slices, r.config.shape);
  OnDevice device(r);
  device.forward.max_logits = nullptr;                       // whose fill would be the first launch
  backend.forward(*mask, device.forward, cudaStreamLegacy);  // this stream has waited for the mask's lists
  cuda::check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
  // A launch on the legacy stream would wait for a stream that is being captured, which CUDA refuses; the context stays
  // sound.
  cudaStream_t captured = nullptr;
  cuda::check(cudaStreamCreate(&captured), "cudaStreamCreate");
  cuda::check(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  try {
    backend.forward(*mask, device.forward, cudaStreamLegacy);
    ADD_FAILURE() << "was launched";
  } catch (const CudaError& error) {
    EXPECT_THAT(error.what(), HasSubstr("sm90 forward kernel launch"));
  }
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(captured, &graph));
  static_cast<void>(cudaGetLastError());
  if (graph != nullptr) cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  cuda::check(cudaStreamDestroy(captured), "cudaStreamDestroy");
}

}  // namespace
}  // namespace tangram
