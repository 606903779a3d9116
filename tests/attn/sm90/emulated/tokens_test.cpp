// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels for token indices, run by the emulator, against float64: the check of lists and the forward pass.
#include <numbers>

#include "attn/sm90/emulated/machine.hpp"
#include "attn/sm90/tokens/check_kernel.cuh"
#include "attn/sm90/tokens/kernel.cuh"
#include "attn/token_problem.hpp"

namespace tangram::test {
namespace {

namespace tokens = sm90::tokens;
using emulated::Order;

constexpr AttnShape shape_of(int64_t rows, int64_t keys, int heads, int kv_heads, DType dtype = DType::kBFloat16) {
  return {rows, keys, heads, kv_heads, 128, 128, dtype};
}

struct Checked {
  std::vector<int32_t> counts;
  int32_t num_refused = 0;
  tokens::ControlBlock control_block;
};

Checked check(const RandomTokens& r, int32_t window, const Order& order) {
  const AttnShape& s = r.shape;
  Checked result;
  result.counts.assign(static_cast<size_t>(s.seqlen_q * s.num_heads_kv), -7);
  tokens::CheckParams params{};
  params.indices = r.indices.data();
  params.counts = result.counts.data();
  params.num_refused = &result.num_refused;
  params.control_block = &result.control_block;
  params.topk = r.problem.topk;
  params.seqlen_k = s.seqlen_k;
  params.seqlen_q = static_cast<int32_t>(s.seqlen_q), params.num_heads_kv = s.num_heads_kv;
  params.window = window;
  emulated::run({2, tokens::kCheckWarps * 32, order}, [&] { tokens::check_kernel(params); });
  return result;
}

template <typename Traits>
void run_forward(RandomTokens& r, const std::vector<int32_t>& counts, uint32_t blocks, const Order& order) {
  const AttnShape& s = r.shape;
  const AttnForwardArgs args = r.forward_args();
  tokens::Params params{};
  params.q = args.q.data, params.k = args.k.data, params.v = args.v.data, params.out = args.out.data;
  params.lse = args.lse;
  params.indices = r.indices.data();
  params.counts = counts.data();
  params.q_row_stride = args.q.row_stride, params.q_head_stride = args.q.head_stride;
  params.k_row_stride = args.k.row_stride, params.k_head_stride = args.k.head_stride;
  params.v_row_stride = args.v.row_stride, params.v_head_stride = args.v.head_stride;
  params.out_row_stride = args.out.row_stride, params.out_head_stride = args.out.head_stride;
  params.topk = r.problem.topk;
  params.seqlen_q = static_cast<int32_t>(s.seqlen_q);
  params.num_heads_q = s.num_heads_q, params.num_heads_kv = s.num_heads_kv;
  params.heads_per_kv = s.num_heads_q / s.num_heads_kv;
  params.parts = (params.heads_per_kv + Traits::kRows - 1) / Traits::kRows;
  params.num_work_tiles = params.seqlen_q * s.num_heads_kv * params.parts;
  params.scale_log2 = static_cast<float>(r.problem.scale * std::numbers::log2e);
  params.rescale_threshold = 8 / params.scale_log2;
  params.out_is_float32 = args.out.dtype == DType::kFloat32;
  static_assert(sizeof(tokens::Smem<Traits>) <= emulated::kSharedBytes);
  emulated::run({blocks, Traits::kThreads, order}, [&] { tokens::token_kernel<Traits>(params); });
}

std::vector<TokenCase> cases(DType dtype) {
  return {
      {"8 query heads, two key heads", shape_of(12, 300, 16, 2, dtype), 200},
      {"16 query heads, more entries than keys", shape_of(9, 90, 16, 1, dtype), 130, TokenLists::kFull, dtype},
      {"64 query heads, rows that lie apart", shape_of(7, 333, 64, 1, dtype), 129, TokenLists::kHoles, dtype, true},
      {"one query head, causal", shape_of(70, 70, 1, 1, dtype), 64, TokenLists::kCausal},
      {"lists that are refused", shape_of(14, 200, 8, 2, dtype), 70, TokenLists::kRefused},
      {"lists of one entry", shape_of(9, 40, 4, 1, dtype), 1, TokenLists::kFull},
      {"lists without entries", shape_of(3, 40, 4, 1, dtype), 0, TokenLists::kFull},
  };
}

std::vector<TokenCase> large_cases(DType dtype) {
  return {
      {"128 query heads", shape_of(5, 700, 128, 1, dtype), 500, TokenLists::kHoles, dtype},
      {"100 query heads, causal", shape_of(150, 150, 100, 1, dtype), 64, TokenLists::kCausal},
      {"200 query heads in two parts", shape_of(4, 300, 200, 1, dtype), 130, TokenLists::kRefused},
  };
}

template <typename Traits>
void expect_close(const TokenCase& c, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.name << ", order " << order.seed);
  RandomTokens r = make_tokens(c, order.seed + 1);
  const Checked checked = check(r, 128, order);
  EXPECT_EQ(checked.num_refused, r.num_refused);
  run_forward<Traits>(r, checked.counts, 2, order);
  // Probabilities are rounded to the dtype: 2^-9 in bfloat16, at most; out likewise.
  expect_out(r, reference::token_attention(r.problem), c.shape.dtype == DType::kFloat16 ? 1e-3 : 6e-3);
}

template <typename Element, int kWarpgroups>
void expect_all_close(int first) {
  constexpr DType kDType = std::is_same_v<Element, __half> ? DType::kFloat16 : DType::kBFloat16;
  emulated::in_orders(
      first, kWarpgroups == 1 ? cases(kDType) : large_cases(kDType),
      [](const TokenCase& c, const Order& order) { expect_close<tokens::Traits<Element, kWarpgroups>>(c, order); }, 2);
}

TEST(Sm90EmulatedTokens, AgreeWithFloat64) { expect_all_close<__nv_bfloat16, 1>(0); }
TEST(Sm90EmulatedTokens, AgreeWithFloat64InFloat16) { expect_all_close<__half, 1>(1); }
TEST(Sm90EmulatedTokens, OfManyHeadsAgreeWithFloat64) { expect_all_close<__nv_bfloat16, 2>(2); }
TEST(Sm90EmulatedTokens, OfManyHeadsAgreeWithFloat64InFloat16) { expect_all_close<__half, 2>(3); }

TEST(Sm90EmulatedTokens, CheckCountsAndRefuses) {
  for (const int32_t window : {128, 256, 1024}) {
    const TokenCase c{"lists", shape_of(40, 1000, 4, 2), 90, TokenLists::kRefused};
    const RandomTokens r = make_tokens(c, static_cast<unsigned>(window));
    const Checked checked = check(r, window, emulated::order(window));
    for (int64_t row = 0; row < 40; ++row) {
      for (int head = 0; head < 2; ++head) {
        const bool refused = r.problem.keys(row, head).empty();
        EXPECT_EQ(checked.counts[static_cast<size_t>(head * 40 + row)], refused ? 0 : 90) << row << ", " << head;
      }
    }
    ASSERT_GT(r.num_refused, 0);
    EXPECT_EQ(checked.num_refused, r.num_refused);
    EXPECT_EQ(checked.control_block.count, r.num_refused);
    const tokens::ControlBlock::Refused& last = checked.control_block.last;
    EXPECT_TRUE(r.problem.keys(last.row, last.kv_head).empty());
    const int32_t* list = r.problem.list(last.row, last.kv_head);
    EXPECT_EQ(std::count(list, list + 90, last.key), last.is_repeated ? 2 : 1);
  }
}

}  // namespace
}  // namespace tangram::test
