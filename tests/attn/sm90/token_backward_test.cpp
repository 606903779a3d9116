// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Gradients over token indices on a Hopper GPU, against float64.
#include <gmock/gmock.h>

#include <cstring>

#include "attn/sm90/on_device.hpp"
#include "attn/token_gradients.hpp"
#include "support/message_of.hpp"

namespace tangram::test {
namespace {

using testing::HasSubstr;

/// A backward call's tensors on the device.
class GradientsOnDevice {
 public:
  explicit GradientsOnDevice(RandomTokens& r) : problem_(&r), args(r.backward_args()) {
    indices_ = cuda::DeviceBuffer::copy_of(r.indices);
    args.lse = keep(cuda::DeviceBuffer::copy_of(r.lse)).as<float>();
    move(args.q, r.q), move(args.k, r.k), move(args.v, r.v), move(args.out, r.out), move(args.dout, r.dout);
    move(args.dq, r.dq), move(args.dk, r.dk), move(args.dv, r.dv);
  }

  TokenIndices tokens() const { return {indices_.as<int32_t>(), problem_->problem.topk}; }
  void fetch() {
    wait_for_device();
    for (auto& [device, host] : outputs_) {
      cuda::check(cudaMemcpy(host->view().data, device, static_cast<size_t>(host->bytes()), cudaMemcpyDeviceToHost),
                  "cudaMemcpy");
    }
  }
  /// NaN in results, as before the first call.
  void clear() {
    for (auto& [device, host] : outputs_) {
      cuda::check(cudaMemset(device, 0xff, static_cast<size_t>(host->bytes())), "cudaMemset");
    }
    wait_for_device();
  }

 private:
  cuda::DeviceBuffer& keep(cuda::DeviceBuffer buffer) {
    buffers_.push_back(std::move(buffer));
    return buffers_.back();
  }
  template <class View>
  void move(View& view, HostTensor& host) {
    view.data = keep(upload(host)).as<void>();
    if (&host == &problem_->dq || &host == &problem_->dk || &host == &problem_->dv) {
      outputs_.emplace_back(const_cast<void*>(static_cast<const void*>(view.data)), &host);
    }
  }

  RandomTokens* problem_;
  cuda::DeviceBuffer indices_;
  std::vector<cuda::DeviceBuffer> buffers_;
  std::vector<std::pair<void*, HostTensor*>> outputs_;

 public:
  AttnBackwardArgs args;
};

class Sm90TokenBackward : public Sm90OnStream {
 protected:
  const TokenAttention& attention() const { return *backend_.token_attention(); }

  Sm90Backend backend_;
};

constexpr AttnShape shape_of(int64_t rows, int64_t keys, int heads, int kv_heads, DType dtype = DType::kBFloat16) {
  return {rows, keys, heads, kv_heads, 128, 128, dtype};
}

std::vector<TokenCase> cases(DType dtype) {
  using enum TokenLists;
  return {
      {"128 query heads", shape_of(40, 1500, 128, 1, dtype), 500},
      {"128 query heads, causal", shape_of(140, 300, 128, 1, dtype), 100, kCausal, dtype, true},
      {"64 query heads", shape_of(71, 1000, 64, 1, dtype), 300},
      {"64 query heads, items of two queries", shape_of(601, 200, 64, 1, dtype), 20},
      {"64 query heads, causal", shape_of(150, 150, 64, 1, dtype), 100, kCausal, dtype},
      {"groups of 16", shape_of(60, 300, 32, 2, dtype), 310, kFull},
      {"groups of 16, items of eight queries", shape_of(710, 200, 48, 3, dtype), 30, kHoles, dtype},
      {"groups of 8", shape_of(70, 500, 32, 4, dtype), 200, kHoles, dtype, true},
      {"groups of 8, items of sixteen queries", shape_of(1100, 400, 32, 4, dtype), 30},
      {"one head", shape_of(300, 500, 1, 1, dtype), 200},
      {"groups of 24", shape_of(77, 300, 48, 2, dtype), 100, kHoles, dtype},
      {"200 query heads", shape_of(20, 300, 200, 1, dtype), 130, kFull},
      {"lists of several stretches", shape_of(140, 40'000, 32, 4, dtype), 5},
      {"two entries", shape_of(500, 64, 8, 1, dtype), 2, kFull},
      {"no entry", shape_of(20, 64, 8, 1, dtype), 0, kFull},
      {"no keys", shape_of(20, 0, 8, 1, dtype), 5, kFull},
  };
}

// In a workspace of NaN, again and again: additions meet in other orders, but in deterministic calls.
TEST_F(Sm90TokenBackward, AgreesWithFloat64) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    unsigned seed = 0;
    for (const TokenCase& c : cases(dtype)) {
      SCOPED_TRACE(c.name);
      RandomTokens r = make_tokens(c, ++seed);
      poison_blind_queries(r);
      const reference::TokenResult expected = reference::token_attention(r.problem);
      fill_results(r, expected);
      GradientsOnDevice device(r);
      for (const bool deterministic : {false, true}) {
        device.args.options.deterministic = deterministic;
        const int64_t bytes = attention().backward_workspace_bytes(r.shape, c.topk, deterministic);
        const cuda::DeviceBuffer workspace(static_cast<size_t>(bytes));
        device.args.workspace = {workspace.as<void>(), bytes};
        HostTensor first[3];
        for (int turn = 0; turn < 3; ++turn) {
          cuda::check(cudaMemset(workspace.as<void>(), 0xff, workspace.bytes()), "cudaMemset");
          device.clear();
          attention().backward(r.shape, device.tokens(), device.args, stream_);
          device.fetch();
          expect_gradients(r, expected, gradient_tolerance(dtype));
          expect_zeros(r);
          const HostTensor* const gradients[] = {&r.dq, &r.dk, &r.dv};
          for (int i = 0; deterministic && i < 3; ++i) {
            if (turn == 0) first[i] = gradients[i]->clone();
            EXPECT_EQ(
                std::memcmp(gradients[i]->data<char>(), first[i].data<char>(), static_cast<size_t>(first[i].bytes())),
                0)
                << "turn " << turn;
          }
        }
      }
    }
  }
  attention().check_errors();
}

TEST_F(Sm90TokenBackward, RefusedListsGetAndGiveNoGradients) {
  for (const int heads : {8, 128}) {
    RandomTokens r = make_tokens({"", shape_of(90, 300, heads, 1), 100, TokenLists::kRefused}, 1);
    poison_blind_queries(r);
    const reference::TokenResult expected = reference::token_attention(r.problem);
    fill_results(r, expected);
    GradientsOnDevice device(r);
    attention().backward(r.shape, device.tokens(), device.args, stream_);
    device.fetch();
    expect_gradients(r, expected, gradient_tolerance(r.shape.dtype));
    expect_zeros(r);
    EXPECT_THAT(support::message_of([&] { attention().check_errors(); }), HasSubstr("lists were refused"));
  }
}

TEST_F(Sm90TokenBackward, NanInAKeyReachesQueriesThatNameItAlone) {
  RandomTokens r = make_tokens({"", shape_of(1100, 900, 32, 2), 5, TokenLists::kFull}, 4);
  const NamedNans nans(r, 3, 11);
  const reference::TokenResult expected = reference::token_attention(r.problem);
  fill_results(r, expected);
  GradientsOnDevice device(r);
  attention().backward(r.shape, device.tokens(), device.args, stream_);
  device.fetch();
  nans.expect_gradients(r, expected);
}

TEST_F(Sm90TokenBackward, IsCapturedInAGraph) {
  RandomTokens r = make_tokens({"", shape_of(90, 300, 16, 1), 100}, 1);
  const reference::TokenResult expected = reference::token_attention(r.problem);
  fill_results(r, expected);
  GradientsOnDevice device(r);
  const int64_t bytes = attention().backward_workspace_bytes(r.shape, 100, false);
  const cuda::DeviceBuffer workspace(static_cast<size_t>(bytes));
  device.args.workspace = {workspace.as<void>(), bytes};
  attention().backward(r.shape, device.tokens(), device.args, stream_);  // loads the kernels
  wait_for_device();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  // In global mode capturing fails on anything that allocates or waits.
  cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  attention().backward(r.shape, device.tokens(), device.args, stream_);
  cuda::check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  cuda::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (int turn = 0; turn < 3; ++turn) {
    device.clear();
    cuda::check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    device.fetch();
    expect_gradients(r, expected, gradient_tolerance(r.shape.dtype));
  }
  cuda::check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

TEST_F(Sm90TokenBackward, WhatItDoesNotTakeIsRefused) {
  RandomTokens r = make_tokens({"", shape_of(9, 30, 8, 1), 10}, 1);
  GradientsOnDevice device(r);
  const auto error = [&] {
    return support::message_of<InvalidArgument>(
        [&] { attention().backward(r.shape, device.tokens(), device.args, stream_); });
  };
  const cuda::DeviceBuffer workspace(1024);
  device.args.workspace = {workspace.as<void>(), 1024};
  EXPECT_THAT(error(), HasSubstr("the workspace must have at least"));
}

}  // namespace
}  // namespace tangram::test
