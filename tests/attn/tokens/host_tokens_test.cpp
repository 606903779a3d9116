// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Token indices on the backends of host memory.
#include <gmock/gmock.h>

#include "attn/token_problem.hpp"
#include "support/message_of.hpp"
#include "tangram/backends.hpp"

namespace tangram::test {
namespace {

using testing::HasSubstr;

class HostTokensTest : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<AttnBackend> backend_ = make_attn_backend(GetParam(), {.num_threads = 2});
  const TokenAttention& attention() const { return *backend_->token_attention(); }
};

TEST_P(HostTokensTest, AgreeWithFloat64) {
  const TokenCase cases[] = {
      {"two key heads", {13, 50, 6, 2, 24, 16, DType::kFloat32}, 20},
      {"bfloat16, rows apart", {9, 40, 4, 1, 16, 16, DType::kBFloat16}, 50, TokenLists::kFull, DType::kFloat32, true},
      {"causal", {20, 20, 2, 2, 8, 8, DType::kFloat16}, 12, TokenLists::kCausal},
      {"no keys", {3, 0, 2, 1, 8, 8, DType::kFloat32}, 4, TokenLists::kFull},
  };
  for (const TokenCase& c : cases) {
    SCOPED_TRACE(c.name);
    RandomTokens r = make_tokens(c, 3);
    const reference::TokenResult expected = reference::token_attention(r.problem);
    attention().forward(r.shape, r.tokens(), r.forward_args(), nullptr);
    expect_out(r, expected, 1e-6);  // rounded to float32
    attention().backward(r.shape, r.tokens(), r.backward_args(), nullptr);
    expect_gradients(r, expected, 1e-5);  // lse and out are rounded to float32
  }
}

// A row of such scores is its largest one. lse, rounded to float32, is off by up to half its step, and dv by as much.
TEST_P(HostTokensTest, OfLargeScoresGradientsOfTheLargestAreExact) {
  for (const float scale : {1e4f, 3e5f}) {
    RandomTokens r = make_tokens({"", {13, 50, 6, 2, 24, 16, DType::kFloat32}, 20}, 3);
    r.problem.scale = scale;
    const reference::TokenResult expected = reference::token_attention(r.problem);
    AttnForwardArgs forward = r.forward_args();
    AttnBackwardArgs backward = r.backward_args();
    forward.options.softmax_scale = backward.options.softmax_scale = scale;
    attention().forward(r.shape, r.tokens(), forward, nullptr);
    attention().backward(r.shape, r.tokens(), backward, nullptr);
    EXPECT_LT(support::relative_error(r.out, expected.out, 6, 16), 1e-6);
    EXPECT_LT(support::relative_error(r.dv, expected.dv, 2, 16), 1e-6);
  }
}

// Rows whose largest keys tie: lse, rounded to float32, held their probabilities to 4e-3.
TEST_P(HostTokensTest, OfTiedLargeScoresGradientsAreExact) {
  RandomTokens r = make_tokens({"", {13, 50, 6, 2, 24, 16, DType::kFloat32}, 20, TokenLists::kFull}, 3);
  const auto set_row = [&](HostTensor& tensor, std::vector<double>& values, int64_t row, int heads, float value) {
    for (int h = 0; h < heads; ++h) {
      for (int d = 0; d < 24; ++d) {
        tensor.set(row, h, d, d == 0 ? value : 0);
        values[static_cast<size_t>((row * heads + h) * 24 + d)] = tensor.at(row, h, d);
      }
    }
  };
  for (int64_t row = 0; row < 13; ++row) set_row(r.q, r.problem.q, row, 6, 896);
  for (int64_t row = 0; row < 50; ++row) set_row(r.k, r.problem.k, row, 2, row % 3 == 0 ? 896 : 0);
  r.problem.scale = 0.125;
  const reference::TokenResult expected = reference::token_attention(r.problem);
  AttnForwardArgs forward = r.forward_args();
  AttnBackwardArgs backward = r.backward_args();
  forward.options.softmax_scale = backward.options.softmax_scale = 0.125f;
  attention().forward(r.shape, r.tokens(), forward, nullptr);
  attention().backward(r.shape, r.tokens(), backward, nullptr);
  EXPECT_LT(support::relative_error(r.out, expected.out, 6, 16), 1e-6);
  EXPECT_LT(support::relative_error(r.dk, expected.dk, 2, 24), 1e-6);
  EXPECT_LT(support::relative_error(r.dv, expected.dv, 2, 16), 1e-6);
}

TEST_P(HostTokensTest, ListsThatNameAKeyTwiceOrNoneAreRefused) {
  RandomTokens r = make_tokens({"", {4, 10, 2, 1, 8, 8, DType::kFloat32}, 3, TokenLists::kFull}, 1);
  const auto error = [&](int32_t a, int32_t b, int32_t c) {
    std::copy_n(std::initializer_list<int32_t>{a, b, c}.begin(), 3, r.indices.begin() + 6);
    return support::message_of<InvalidArgument>(
        [&] { attention().forward(r.shape, r.tokens(), r.forward_args(), nullptr); });
  };
  EXPECT_THAT(error(4, -1, 4), HasSubstr("must name a key once (got key 4 twice for query 2, K/V head 0)"));
  EXPECT_THAT(error(4, 10, 5), HasSubstr("must name rows of k, or -1 for none (got key 10 for query 2, K/V head 0)"));
  EXPECT_THAT(error(-2, 1, 5), HasSubstr("(got key -2 for query 2"));
}

TEST_P(HostTokensTest, WhatSuchCallsDoNotTakeIsRefused) {
  RandomTokens r = make_tokens({"", {4, 10, 2, 1, 8, 8, DType::kFloat32}, 3}, 1);
  AttnForwardArgs args = r.forward_args();
  args.options.softcap = 3;
  EXPECT_THROW(attention().forward(r.shape, r.tokens(), args, nullptr), InvalidArgument);
  args = r.forward_args();
  args.accumulate = true;
  EXPECT_THROW(attention().forward(r.shape, r.tokens(), args, nullptr), InvalidArgument);
  EXPECT_THROW(attention().forward(r.shape, {nullptr, 3}, r.forward_args(), nullptr), InvalidArgument);
  AttnBackwardArgs backward = r.backward_args();
  backward.delta = r.lse.data();
  EXPECT_THROW(attention().backward(r.shape, r.tokens(), backward, nullptr), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, HostTokensTest, testing::Values("cpu", "reference"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace tangram::test
