// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backward calls over token indices as far as the host goes: which kernels they are, and what memory they ask for.
// Counted by a runtime over host memory.

#include <gtest/gtest.h>

#include <cstdint>

#include "attn/sm90/counted_calls.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/counting_runtime.hpp"
#include "support/message_of.hpp"
#include "tangram/error.hpp"
#include "tangram/token_attention.hpp"

namespace tangram {
namespace {

using counted::kRows;
using counted::since;

TEST(TokenCalls, DeterministicOnesStoreAndCollectPartByPart) {
  const Sm90Backend backend;
  const TokenAttention& attention = *backend.token_attention();
  constexpr AttnShape kShape{kRows, kRows, 16, 2, 128, 128, DType::kBFloat16};
  counted::Operands operands;
  AttnBackwardArgs args = operands.backward();
  const auto* indices = static_cast<const int32_t*>(operands.view(1, 8).data);
  const auto launches = [&](int64_t topk, bool deterministic) {
    args.options.deterministic = deterministic;
    // Its content is not read.
    args.workspace = {operands.view(1, 8).data, attention.backward_workspace_bytes(kShape, topk, deterministic)};
    attention.backward(kShape, {indices, topk}, args);  // the first one has a page allocated
    const testing::RuntimeCounts before = testing::runtime_counts();
    attention.backward(kShape, {indices, topk}, args);
    const testing::RuntimeCounts made = since(before);
    EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.copies, 0);
    return made.launches;
  };
  EXPECT_EQ(launches(1024, false), 1 + 1 + 2 + 1) << "check, before, lists and main kernel, after";
  EXPECT_EQ(launches(128, true), 1 + 1 + 3 + 1) << "and what collects";
  EXPECT_EQ(launches(1024, true), 1 + 1 + 2 * 3 + 1) << "4 MB an item of 4,096 keys, 512 items: two parts of 1 GB";
  args.workspace.bytes = attention.backward_workspace_bytes(kShape, 1024, false);
  EXPECT_NE(support::message_of([&] { attention.backward(kShape, {indices, 1024}, args); }).find("the workspace must"),
            std::string::npos);
}

// Sums, statistics, and lists of at most 256 MB or a thousand work tiles; in deterministic calls what work tiles store.
TEST(TokenCalls, WorkspacesStayBounded) {
  const Sm90Backend backend;
  const auto megabytes = [&](int64_t rows, int heads, int kv_heads, int64_t topk, bool deterministic) {
    const AttnShape shape{rows, rows, heads, kv_heads, 128, 128, DType::kBFloat16};
    return backend.token_attention()->backward_workspace_bytes(shape, topk, deterministic) >> 20;
  };
  EXPECT_LT(megabytes(32768, 128, 1, 2048, false), 128);
  EXPECT_LT(megabytes(32768, 64, 8, 2048, false), 700);
  EXPECT_LT(megabytes(131072, 64, 8, 2048, false), 2100);
  EXPECT_LT(megabytes(32768, 128, 1, 2048, true), 1200);
  EXPECT_LT(megabytes(32768, 64, 8, 2048, true), 1700);
  EXPECT_LT(megabytes(131072, 64, 8, 2048, true), 3200);
}

}  // namespace
}  // namespace tangram
