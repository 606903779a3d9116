// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward kernels for token indices, run by the emulator, against float64.
#include <cstring>
#include <numbers>

#include "attn/sm90/emulated/problem.hpp"
#include "attn/sm90/emulated/tensor_maps.hpp"
#include "attn/sm90/token_backward/collect.cuh"
#include "attn/sm90/token_backward/kernel.cuh"
#include "attn/sm90/token_backward/lists.cuh"
#include "attn/sm90/token_backward/pre_posts.cuh"
#include "attn/token_gradients.hpp"

namespace tangram::test {
namespace {

namespace token = sm90::token_backward;
using emulated::Order;

struct Case {
  TokenCase tokens;
  uint32_t blocks;                     // of the grid
  int32_t parts_of = 1000;             // work tiles
  int32_t tokens_of_work_tile = 1000;  // at most
};

/// The head dimension and dtype are those of the kernel.
AttnShape shape_of(int64_t rows, int64_t keys, int heads_q, int heads_kv) {
  return {rows, keys, heads_q, heads_kv, 0, 0, DType::kBFloat16};
}

std::vector<Case> cases() {
  constexpr DType kF32 = DType::kFloat32, kF16 = DType::kFloat16;  // kF16: the dtype of the kernel
  using enum TokenLists;
  return {
      {{"128 heads", shape_of(9, 300, 128, 1), 150, kHoles, kF16}, 2},
      {{"128 heads, two key heads", shape_of(4, 140, 256, 2), 200, kRefused, kF32, true}, 3},
      {{"64 heads", shape_of(11, 300, 64, 1), 140, kHoles, kF16}, 2},
      {{"64 heads, causal", shape_of(7, 400, 64, 1), 5, kCausal, kF32}, 1},
      {{"16 heads, two key heads", shape_of(19, 260, 32, 2), 70, kHoles, kF16}, 2, 3},
      {{"8 heads, two key heads", shape_of(37, 300, 16, 2), 40, kRefused, kF32, true}, 2},
      {{"8 heads, all keys", shape_of(17, 260, 8, 1), 260, kFull, kF32, true}, 2},
      {{"2 heads", shape_of(20, 90, 4, 2), 9, kHoles, kF16}, 2},
      {{"24 heads", shape_of(12, 150, 24, 1), 60, kFull, kF16}, 2},
      {{"12 heads, two key heads", shape_of(10, 150, 24, 2), 60, kHoles, kF32, true}, 2},
      {{"150 heads", shape_of(4, 140, 300, 2), 20, kHoles, kF16}, 2},
      {{"two entries", shape_of(40, 30, 8, 1), 2, kFull, kF32}, 2},
      {{"no indices", shape_of(5, 20, 8, 1), 0, kHoles, kF32}, 1},
      {{"no indices, 128 heads", shape_of(5, 20, 128, 1), 0, kHoles, kF32}, 2},
      {{"no keys", shape_of(5, 0, 8, 1), 3, kFull, kF32}, 2},
      {{"no keys, 128 heads", shape_of(3, 0, 128, 1), 3, kFull, kF32}, 1},
      {{"8 heads, items of one query", shape_of(30, 60, 8, 1), 20, kHoles, kF32}, 2, 1000, 1},
      {{"8 heads, items of two queries", shape_of(31, 260, 16, 2), 20, kHoles, kF32}, 2, 1000, 2},
  };
}

/// Counts as the check of lists leaves them.
std::vector<int32_t> counts_of(const reference::TokenProblem& p) {
  std::vector<int32_t> counts(static_cast<size_t>(p.heads_kv * p.rows_q));
  for (int64_t row = 0; row < p.rows_q; ++row) {
    for (int head = 0; head < p.heads_kv; ++head) {
      int64_t count = p.keys(row, head).empty() ? 0 : p.topk;
      while (count > 0 && p.list(row, head)[count - 1] < 0) --count;
      counts[static_cast<size_t>(head * p.rows_q + row)] = static_cast<int32_t>(count);
    }
  }
  return counts;
}

token::PrePostParams edge_of(RandomTokens& r, const std::vector<int32_t>& counts, int32_t tokens) {
  const AttnShape& s = r.shape;
  const AttnBackwardArgs args = r.backward_args();
  token::PrePostParams pre_post{};
  pre_post.out = args.out.data, pre_post.dout = args.dout.data, pre_post.lse = args.lse,
  pre_post.counts = counts.data();
  pre_post.dk = args.dk.data, pre_post.dv = args.dv.data;
  pre_post.out_row_stride = args.out.row_stride, pre_post.out_head_stride = args.out.head_stride;
  pre_post.dout_row_stride = args.dout.row_stride, pre_post.dout_head_stride = args.dout.head_stride;
  pre_post.dk_row_stride = args.dk.row_stride, pre_post.dk_head_stride = args.dk.head_stride;
  pre_post.dv_row_stride = args.dv.row_stride, pre_post.dv_head_stride = args.dv.head_stride;
  pre_post.packing = token::packing_of(s.num_heads_q / s.num_heads_kv);
  pre_post.packing.tokens = std::min(pre_post.packing.tokens, tokens);
  pre_post.seqlen_q = static_cast<int32_t>(s.seqlen_q), pre_post.seqlen_k = static_cast<int32_t>(s.seqlen_k);
  pre_post.num_heads_kv = s.num_heads_kv;
  pre_post.work_tiles_per_group = (pre_post.seqlen_q + pre_post.packing.tokens - 1) / pre_post.packing.tokens;
  pre_post.softmax_scale = static_cast<float>(r.problem.scale);
  pre_post.out_float32 = args.out.dtype == DType::kFloat32;
  pre_post.dkv_type = args.dk.dtype == DType::kFloat32 ? token::GradType::kFloat32 : token::GradType::kInput;
  return pre_post;
}

token::ListParams lists_of(const RandomTokens& r, const token::PrePostParams& pre_post) {
  token::ListParams lists{};
  lists.indices = r.indices.data();
  lists.counts = pre_post.counts;
  lists.packing = pre_post.packing;
  lists.seqlen_q = pre_post.seqlen_q, lists.seqlen_k = pre_post.seqlen_k;
  lists.num_heads_kv = pre_post.num_heads_kv;
  lists.topk = static_cast<int32_t>(r.problem.topk);
  lists.capacity = std::min(pre_post.seqlen_k, pre_post.packing.tokens * lists.topk);
  lists.work_tiles_per_group = pre_post.work_tiles_per_group;
  return lists;
}

/// Memory for the lists of so many work tiles, of any content before. `ordered`: also of work tiles of one query.
struct ListMemory {
  std::vector<int32_t> keys;
  std::vector<uint16_t> row_blocks;
  std::vector<token::ListHead> heads;
  ListMemory(token::ListParams& lists, int32_t work_tiles, bool ordered = false)
      : keys(static_cast<size_t>(lists.capacity * work_tiles), -7),
        row_blocks(keys.size(), 0x5555),
        heads(static_cast<size_t>(work_tiles), {-7, 0x5555}) {
    if (lists.packing.tokens == 1 && !ordered) return;
    lists.keys = keys.data(), lists.row_blocks = row_blocks.data(), lists.heads = heads.data();
  }
};

token::Params params_of(RandomTokens& r, const token::PrePostParams& pre_post, const token::ListParams& lists) {
  const AttnBackwardArgs args = r.backward_args();
  token::Params params{};
  const auto map_of = [&](HostTensor& tensor) {
    return emulated::heads_first_map(RandomTokens::part(tensor, r.shape.num_heads_q), 1, pre_post.packing.heads, 1,
                                     emulated::Columns::kPanels);
  };
  params.q_map = map_of(r.q);
  params.dout_map = map_of(r.dout);
  const ConstTensorView* views[] = {&args.k, &args.v};
  for (int i = 0; i < 2; ++i) {
    params.keys[i] = views[i]->data;
    params.key_head_bytes[i] = views[i]->head_stride * 2;
    params.key_row_bytes[i] = static_cast<int32_t>(views[i]->row_stride * 2);
  }
  params.lists = lists;
  params.stats = pre_post.stats;
  params.dk_sums = pre_post.dk_sums;
  params.dv_sums = pre_post.dk_sums + int64_t{pre_post.num_heads_kv} * pre_post.seqlen_k * r.shape.head_dim;
  params.dq = args.dq.data;
  params.dq_row_stride = args.dq.row_stride, params.dq_head_stride = args.dq.head_stride;
  params.softmax_scale = pre_post.softmax_scale;
  params.scale_log2 = pre_post.softmax_scale * std::numbers::log2e_v<float>;
  params.dq_type = pre_post.dkv_type;
  return params;
}

template <typename Traits>
void run_call(RandomTokens& r, const Case& c, const Order& order) {
  using Element = typename Traits::Element;
  constexpr int kHeadDim = Traits::kHeadDim;
  static_assert(sizeof(typename Traits::SmemType) <= emulated::kSharedBytes);
  const std::vector<int32_t> counts = counts_of(r.problem);
  token::PrePostParams pre_post = edge_of(r, counts, c.tokens_of_work_tile);
  const int32_t work_tiles = pre_post.work_tiles_per_group * pre_post.num_heads_kv * pre_post.packing.parts,
                in_part = std::min(c.parts_of, work_tiles);
  token::ListParams lists = lists_of(r, pre_post);
  const bool has_lists = Traits::kOrdered || lists.packing.tokens > 1;
  const ListMemory memory(lists, in_part, Traits::kOrdered);
  // Memory in which a call computes begins with anything in it.
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> sums(static_cast<size_t>(2 * pre_post.num_heads_kv * pre_post.seqlen_k * kHeadDim), kNan);
  std::vector<float> stats(static_cast<size_t>(work_tiles) * token::kStatsFloats, kNan);
  pre_post.num_parts = (work_tiles + in_part - 1) / in_part;
  std::vector<int32_t> tickets(static_cast<size_t>(pre_post.num_parts), -1);
  pre_post.stats = stats.data(), pre_post.dk_sums = sums.data(), pre_post.tickets = tickets.data();
  std::vector<uint8_t> nans(static_cast<size_t>(2 * pre_post.num_heads_kv * ((pre_post.seqlen_k + 7) / 8)), 0x5a);
  if (has_lists) pre_post.nans = nans.data();
  lists.nans = pre_post.nans;
  token::Params params = params_of(r, pre_post, lists);
  token::CollectParams collect{.sums = {params.dk_sums, params.dv_sums}};
  std::vector<float> shares[2];
  if constexpr (Traits::kOrdered) {
    for (std::vector<float>& share : shares) share.assign(memory.keys.size() * kHeadDim, kNan);
    params.dk_sums = shares[0].data(), params.dv_sums = shares[1].data();
    collect.shares[0] = params.dk_sums, collect.shares[1] = params.dv_sums;
  }
  for (int i = 0; i < 2; ++i) {
    pre_post.keys[i] = params.keys[i];
    pre_post.key_head_bytes[i] = params.key_head_bytes[i], pre_post.key_row_bytes[i] = params.key_row_bytes[i];
  }
  emulated::run_one_by_one({static_cast<uint32_t>(work_tiles) + 2, token::kPrePostThreads, order},
                           [&] { token::before_kernel<Element, kHeadDim>(pre_post); });
  for (int32_t part = 0; part < pre_post.num_parts; ++part) {
    params.lists.first_work_tile = part * in_part;
    params.num_work_tiles = std::min(work_tiles - part * in_part, in_part);
    params.ticket = &tickets[static_cast<size_t>(part)];
    if (has_lists) {
      emulated::run_one_by_one({static_cast<uint32_t>(params.num_work_tiles), token::kListThreads, order},
                               [&] { token::list_kernel(params.lists); });
    }
    emulated::run({c.blocks, Traits::kThreads, order}, [&] { token::token_backward_kernel<Traits>(params); });
    if constexpr (Traits::kOrdered) {
      collect.lists = params.lists, collect.num_work_tiles = params.num_work_tiles;
      const auto keys = static_cast<uint32_t>(pre_post.num_heads_kv * pre_post.seqlen_k);
      constexpr uint32_t kKeys = token::kCollectThreads / 32;  // of a CTA
      emulated::run_one_by_one({(keys + kKeys - 1) / kKeys, token::kCollectThreads, order},
                               [&] { token::collect_kernel<kHeadDim>(collect); });
    }
  }
  const auto vectors = static_cast<uint32_t>(sums.size() / 4);
  emulated::run_one_by_one(
      {(vectors + token::kPrePostThreads - 1) / token::kPrePostThreads, token::kPrePostThreads, order},
      [&] { token::after_kernel<Element, kHeadDim>(pre_post); });
}

template <typename Traits>
void expect_close(Case c, const Order& order) {
  SCOPED_TRACE(testing::Message() << c.tokens.name << ", order " << order.seed);
  constexpr int kHeadDim = Traits::kHeadDim;
  AttnShape& s = c.tokens.shape;
  s.head_dim = s.head_dim_v = kHeadDim;
  s.dtype = std::is_same_v<typename Traits::Element, __half> ? DType::kFloat16 : DType::kBFloat16;
  if (c.tokens.out_dtype != DType::kFloat32) c.tokens.out_dtype = s.dtype;
  RandomTokens r = make_tokens(c.tokens, 1);
  poison_blind_queries(r);
  const reference::TokenResult expected = reference::token_attention(r.problem);
  fill_results(r, expected);
  if constexpr (Traits::kOrdered) {
    Case other = c;
    ++other.blocks;
    run_call<Traits>(r, other, emulated::order(order.seed + 1));
  }
  const HostTensor before[] = {r.dq.clone(), r.dk.clone(), r.dv.clone()};
  run_call<Traits>(r, c, order);
  const HostTensor* const again[] = {&r.dq, &r.dk, &r.dv};
  for (int i = 0; Traits::kOrdered && i < 3; ++i) {
    const auto bytes = static_cast<size_t>(before[i].bytes());
    EXPECT_EQ(std::memcmp(before[i].data<char>(), again[i]->data<char>(), bytes), 0) << "gradient " << i;
  }
  expect_gradients(r, expected, gradient_tolerance(s.dtype));
  expect_zeros(r);
  if (!c.tokens.strided) return;
  emulated_problem::expect_gaps_untouched(r.dq, s.num_heads_q, kHeadDim);
  emulated_problem::expect_gaps_untouched(r.dk, s.num_heads_kv, kHeadDim);
  emulated_problem::expect_gaps_untouched(r.dv, s.num_heads_kv, kHeadDim);
}

template <typename Traits>
void expect_all_close(int first, const std::vector<Case>& of, int one_in = 1) {
  emulated::in_orders(first, of, [](const Case& c, const Order& order) { expect_close<Traits>(c, order); }, one_in);
}
TEST(Sm90EmulatedTokenBackward, AgreesWithFloat64HeadDim128) {
  expect_all_close<token::Traits<__nv_bfloat16, 128>>(0, cases(), 3);
}
TEST(Sm90EmulatedTokenBackward, AgreesWithFloat64InFloat16HeadDim128) {
  expect_all_close<token::Traits<__half, 128>>(1, cases(), 3);
}
TEST(Sm90EmulatedTokenBackward, AgreesWithFloat64HeadDim64) {
  expect_all_close<token::Traits<__nv_bfloat16, 64>>(2, cases(), 3);
}

/// Parts end within the work tiles of a K/V head, or are several heads'.
std::vector<Case> ordered_cases() {
  constexpr DType kF32 = DType::kFloat32, kF16 = DType::kFloat16;
  using enum TokenLists;
  return {
      {{"128 heads", shape_of(9, 300, 128, 1), 150, kHoles, kF16}, 2, 4},
      {{"128 heads, two key heads", shape_of(4, 140, 256, 2), 100, kRefused, kF32, true}, 3, 3},
      {{"16 heads, two key heads", shape_of(19, 260, 32, 2), 70, kHoles, kF16}, 2, 3},
      {{"8 heads, two key heads", shape_of(37, 90, 16, 2), 40, kRefused, kF32, true}, 2},
      {{"300 heads", shape_of(5, 60, 300, 1), 20, kCausal, kF32}, 2, 7},
      {{"more items than lanes", shape_of(40, 30, 8, 1), 20, kHoles, kF32}, 2, 1000, 1},
      {{"no indices", shape_of(5, 20, 128, 1), 0, kHoles, kF32}, 2},
      {{"no keys", shape_of(5, 0, 8, 1), 3, kFull, kF32}, 2},
  };
}
TEST(Sm90EmulatedTokenBackward, DeterministicCallsAgreeWithFloat64AndRepeat) {
  expect_all_close<token::OrderedTraits<__nv_bfloat16, 128>>(0, ordered_cases());
}
TEST(Sm90EmulatedTokenBackward, DeterministicCallsAgreeWithFloat64AndRepeatInFloat16) {
  expect_all_close<token::OrderedTraits<__half, 128>>(1, {ordered_cases()[2]});
}

// Queries beside one that names a key with NaN, and keys that it does not name, have gradients as ever.
TEST(Sm90EmulatedTokenBackward, NanInAKeyReachesQueriesThatNameItAlone) {
  for (const int heads : {2, 32, 128}) {
    AttnShape shape = shape_of(30, 150, heads, 2);
    shape.head_dim = shape.head_dim_v = 128;
    const Case c{{"", shape, 5, TokenLists::kFull}, 2};
    RandomTokens r = make_tokens(c.tokens, 4);
    const NamedNans nans(r, 3, 11);
    const reference::TokenResult expected = reference::token_attention(r.problem);
    fill_results(r, expected);
    run_call<token::Traits<__nv_bfloat16, 128>>(r, c, emulated::order(heads % 3));
    nans.expect_gradients(r, expected);
    if (heads == 32) continue;  // work tiles of one query and of many
    run_call<token::OrderedTraits<__nv_bfloat16, 128>>(r, c, emulated::order(heads % 2));
    nans.expect_gradients(r, expected);
  }
}

// More keys than a map of the kernel holds: range by range, in ascending order.
TEST(Sm90EmulatedTokenBackward, ListsOfMoreKeysThanAMap) {
  const AttnShape shape{20, 2 * token::kMapKeys + 5000, 16, 2, 1, 1, DType::kBFloat16};
  const RandomTokens r = make_tokens({"", shape, 300}, 3);
  const reference::TokenProblem& p = r.problem;
  const std::vector<int32_t> counts = counts_of(p);
  token::PrePostParams pre_post{};
  pre_post.packing = token::packing_of(8);
  pre_post.seqlen_q = 20, pre_post.seqlen_k = static_cast<int32_t>(p.rows_k), pre_post.num_heads_kv = 2,
  pre_post.work_tiles_per_group = 2;
  pre_post.counts = counts.data();
  token::ListParams lists = lists_of(r, pre_post);
  const ListMemory memory(lists, 4);
  const int64_t bytes = (pre_post.seqlen_k + 7) / 8;
  std::vector<uint8_t> nans(static_cast<size_t>(4 * bytes));
  for (size_t i = 0; i < nans.size(); ++i) nans[i] = static_cast<uint8_t>(i * 37);
  lists.nans = nans.data();
  emulated::run_one_by_one({4, token::kListThreads, emulated::order(0)}, [&] { token::list_kernel(lists); });
  for (int32_t work_tile = 0; work_tile < 4; ++work_tile) {
    std::vector<uint32_t> want(static_cast<size_t>(p.rows_k));
    uint32_t seen = 0;
    for (int32_t i = 0; i < 16 && work_tile % 2 * 16 + i < p.rows_q; ++i) {
      for (const int64_t key : p.keys(work_tile % 2 * 16 + i, work_tile / 2)) want[static_cast<size_t>(key)] |= 1u << i;
    }
    auto at = static_cast<size_t>(work_tile * lists.capacity);
    for (size_t key = 0; key < want.size(); ++key) {
      if (want[key] == 0) continue;
      seen |= want[key];
      const auto bit = [&](int32_t table, int32_t value) {
        const size_t byte = static_cast<size_t>((table * 2 + work_tile / 2) * bytes) + key / 8;
        return (nans[byte] >> (key % 8) & 1) * value;
      };
      const int32_t flags = bit(0, sm90::token_backward::kNanInK) + bit(1, sm90::token_backward::kNanInV);
      ASSERT_EQ(memory.keys[at], static_cast<int32_t>(key) + flags);
      ASSERT_EQ(memory.row_blocks[at++], want[key]);
    }
    EXPECT_EQ(memory.heads[static_cast<size_t>(work_tile)].count,
              static_cast<int32_t>(at) - work_tile * lists.capacity);
    EXPECT_EQ(memory.heads[static_cast<size_t>(work_tile)].seen_blocks, seen);
  }
}

}  // namespace
}  // namespace tangram::test
