// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Token indices on a Hopper GPU, against float64.
#include <gmock/gmock.h>

#include "attn/sm90/on_device.hpp"
#include "attn/token_problem.hpp"
#include "support/message_of.hpp"

namespace tangram::test {
namespace {

using testing::HasSubstr;

/// The tensors of a problem on the device.
class TokensOnDevice {
 public:
  explicit TokensOnDevice(RandomTokens& r) : problem_(&r), forward(r.forward_args()) {
    indices_ = cuda::DeviceBuffer::copy_of(r.indices);
    q_ = upload(r.q), k_ = upload(r.k), v_ = upload(r.v), out_ = upload(r.out), lse_ = upload(r.lse);
    forward.q.data = q_.as<void>(), forward.k.data = k_.as<void>(), forward.v.data = v_.as<void>();
    forward.out.data = out_.as<void>(), forward.lse = lse_.as<float>();
  }

  TokenIndices tokens() const { return {indices_.as<int32_t>(), problem_->problem.topk}; }
  void set_lists(const std::vector<int32_t>& lists) {
    cuda::upload(indices_.as<void>(), lists.data(), lists.size() * sizeof(int32_t));
  }
  void fetch() {
    wait_for_device();
    const auto get = [](const cuda::DeviceBuffer& from, void* to) {
      cuda::check(cudaMemcpy(to, from.as<void>(), from.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    };
    get(out_, problem_->out.view().data);
    get(lse_, problem_->lse.data());
  }

 private:
  RandomTokens* problem_;
  cuda::DeviceBuffer indices_, q_, k_, v_, out_, lse_;

 public:
  AttnForwardArgs forward;
};

class Sm90Tokens : public Sm90OnStream {
 protected:
  void SetUp() override {
    Sm90OnStream::SetUp();
    if (!IsSkipped()) static_cast<void>(support::message_of([&] { attention().check_errors(); }));
  }
  const TokenAttention& attention() const { return *backend_.token_attention(); }
  std::string errors() const {
    return support::message_of([&] { attention().check_errors(); });
  }

  Sm90Backend backend_;
};

constexpr AttnShape shape_of(int64_t rows, int64_t keys, int heads, int kv_heads, DType dtype = DType::kBFloat16) {
  return {rows, keys, heads, kv_heads, 128, 128, dtype};
}

TEST_F(Sm90Tokens, AgreeWithFloat64) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const TokenCase cases[] = {
        {"one head", shape_of(300, 500, 1, 1, dtype), 200},
        {"groups of 8", shape_of(60, 700, 32, 4, dtype), 333, TokenLists::kHoles, dtype, true},
        {"groups of 16", shape_of(300, 100, 32, 2, dtype), 120, TokenLists::kFull},
        {"64 query heads", shape_of(30, 1500, 64, 1, dtype), 512},
        {"64 query heads, causal", shape_of(280, 280, 64, 1, dtype), 70, TokenLists::kCausal, dtype},
        {"65 query heads", shape_of(20, 300, 65, 1, dtype), 128, TokenLists::kFull, dtype},
        {"128 query heads", shape_of(12, 1500, 128, 1, dtype), 1000},
        {"128 query heads, causal", shape_of(200, 200, 128, 1, dtype), 70, TokenLists::kCausal, dtype, true},
        {"200 query heads", shape_of(10, 300, 200, 1, dtype), 130, TokenLists::kFull},
        {"one entry", shape_of(500, 64, 8, 1, dtype), 1, TokenLists::kFull, dtype},
        {"no entry", shape_of(20, 64, 8, 1, dtype), 0, TokenLists::kFull},
        {"no keys", shape_of(20, 0, 8, 1, dtype), 5, TokenLists::kFull},
    };
    unsigned seed = 0;
    for (const TokenCase& c : cases) {
      SCOPED_TRACE(c.name);
      RandomTokens r = make_tokens(c, ++seed);
      r.problem.dout.clear();  // no gradients
      TokensOnDevice device(r);
      attention().forward(r.shape, device.tokens(), device.forward, stream_);
      device.fetch();
      // Probabilities and out are rounded to the dtype: 2^-9 each in bfloat16, at most.
      expect_out(r, reference::token_attention(r.problem), dtype == DType::kFloat16 ? 1e-3 : 6e-3);
    }
  }
  attention().check_errors();
}

// More keys than the check marks at a time.
TEST_F(Sm90Tokens, RepeatedKeysAreFoundAmongMany) {
  constexpr int64_t kKeys = 300'000;
  RandomTokens r = make_tokens({"", shape_of(3, kKeys, 2, 1), 50, TokenLists::kFull}, 1);
  r.problem.dout.clear();
  TokensOnDevice device(r);
  attention().forward(r.shape, device.tokens(), device.forward, stream_);
  device.fetch();
  expect_out(r, reference::token_attention(r.problem), 6e-3);
  EXPECT_EQ(errors(), "nothing was thrown");
  for (const int32_t key : {3, 262'143, 262'144, 299'999}) {
    std::vector<int32_t> lists = r.indices;
    lists[60] = lists[90] = key;
    device.set_lists(lists);
    attention().forward(r.shape, device.tokens(), device.forward, stream_);
    wait_for_device();
    EXPECT_THAT(errors(), HasSubstr("a key once (got key " + std::to_string(key) + " twice for query 1"));
  }
}

TEST_F(Sm90Tokens, RefusedListsSeeNothingAndTheNextCallThrows) {
  RandomTokens r = make_tokens({"", shape_of(90, 300, 8, 2), 100, TokenLists::kRefused}, 1);
  TokensOnDevice device(r);
  attention().forward(r.shape, device.tokens(), device.forward, stream_);
  device.fetch();
  expect_out(r, reference::token_attention(r.problem), 6e-3);
  const std::string refused = std::to_string(r.num_refused) + " lists were refused)";
  EXPECT_THAT(support::message_of([&] { attention().forward(r.shape, device.tokens(), device.forward, stream_); }),
              HasSubstr(refused));
  EXPECT_EQ(errors(), "nothing was thrown");  // once
}

TEST_F(Sm90Tokens, ErrorsNameTheList) {
  RandomTokens r = make_tokens({"", shape_of(9, 300, 8, 2), 4, TokenLists::kFull}, 1);
  TokensOnDevice device(r);
  const auto refused = [&](std::initializer_list<int32_t> list) {
    std::vector<int32_t> lists = r.indices;
    std::copy(list.begin(), list.end(), lists.begin() + (6 * 2 + 1) * 4);
    device.set_lists(lists);
    attention().forward(r.shape, device.tokens(), device.forward, stream_);
    wait_for_device();
    return errors();
  };
  EXPECT_EQ(refused({3, -1, 299, 0}), "nothing was thrown");
  EXPECT_THAT(refused({3, -1, 300, 0}),
              HasSubstr("rows of k, or -1 for none (got key 300 for query 6, K/V head 1; 1 lists were refused)"));
  EXPECT_THAT(refused({3, -2, 5, 0}), HasSubstr("got key -2 for query 6"));
  EXPECT_THAT(refused({3, 299, 5, 299}), HasSubstr("a key once (got key 299 twice for query 6, K/V head 1"));
}

TEST_F(Sm90Tokens, GraphsTakeTheListsThatAreThere) {
  const TokenCase c{"", shape_of(60, 200, 16, 2), 90};
  RandomTokens first = make_tokens(c, 1);
  TokensOnDevice device(first);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launch = nullptr;
  attention().forward(first.shape, device.tokens(), device.forward, stream_);
  cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  attention().forward(first.shape, device.tokens(), device.forward, stream_);
  cuda::check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  cuda::check(cudaGraphInstantiate(&launch, graph, 0), "cudaGraphInstantiate");
  // Tensors of the first problem, whose keys that no list names are NaN: only its lists, in another order of rows.
  for (const int64_t shift : {0, 1, 7}) {
    const auto begin = static_cast<std::ptrdiff_t>(shift * 2 * c.topk);
    std::rotate(first.indices.begin(), first.indices.begin() + begin, first.indices.end());
    first.problem.indices = first.indices;
    device.set_lists(first.indices);
    cuda::check(cudaGraphLaunch(launch, stream_), "cudaGraphLaunch");
    device.fetch();
    expect_out(first, reference::token_attention(first.problem), 6e-3);
  }
  std::vector<int32_t> wrong = first.indices;
  wrong[0] = 1000;
  device.set_lists(wrong);
  cuda::check(cudaGraphLaunch(launch, stream_), "cudaGraphLaunch");
  wait_for_device();
  EXPECT_THAT(errors(), HasSubstr("got key 1000 for query 0, K/V head 0"));
  cuda::check(cudaGraphExecDestroy(launch), "cudaGraphExecDestroy");
  cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

TEST_F(Sm90Tokens, WhatKernelsDoNotTakeIsRefused) {
  const auto refusal = [&](const AttnShape& shape) { return attention().refusal(shape, 4); };
  EXPECT_EQ(refusal(shape_of(9, 9, 8, 1)), "");
  AttnShape shape = shape_of(9, 9, 8, 1, DType::kFloat32);
  EXPECT_THAT(refusal(shape), HasSubstr("bfloat16 or float16 (got float32)"));
  shape = shape_of(9, 9, 8, 1);
  shape.head_dim_v = 64;
  EXPECT_THAT(refusal(shape), HasSubstr("head_dim and head_dim_v 128 (got 128 and 64)"));
  RandomTokens r = make_tokens({"", shape_of(9, 30, 8, 2), 4}, 1);
  TokensOnDevice device(r);
  device.forward.options.softcap = 2;
  EXPECT_THROW(attention().forward(r.shape, device.tokens(), device.forward, stream_), InvalidArgument);
}

TEST_F(Sm90Tokens, TakeTheWorkspaceThatIsGiven) {
  RandomTokens r = make_tokens({"", shape_of(50, 90, 8, 2), 40}, 1);
  TokensOnDevice device(r);
  const int64_t bytes = attention().forward_workspace_bytes(r.shape, 40);
  const cuda::DeviceBuffer space(static_cast<size_t>(bytes));
  cuda::check(cudaMemset(space.as<void>(), 0xff, space.bytes()), "cudaMemset");
  wait_for_device();
  device.forward.workspace = {space.as<void>(), bytes};
  attention().forward(r.shape, device.tokens(), device.forward, stream_);
  device.fetch();
  expect_out(r, reference::token_attention(r.problem), 6e-3);
  device.forward.workspace.bytes = bytes - 1;
  EXPECT_THROW(attention().forward(r.shape, device.tokens(), device.forward, stream_), InvalidArgument);
}

}  // namespace
}  // namespace tangram::test
