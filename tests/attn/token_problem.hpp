// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Random problems with token indices, in 16-bit tensors and in float64, which tests of all backends share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "reference/token_attention.hpp"
#include "support/relative_error.hpp"
#include "tangram/token_attention.hpp"

namespace tangram::test {

/// What lists hold besides keys at random.
enum class TokenLists {
  kFull,     ///< topk keys
  kHoles,    ///< -1 here and there, of every fifth query nothing but -1, of every seventh one key
  kCausal,   ///< the first rows see fewer keys than there is room for
  kRefused,  ///< some name a key twice, some one that is none
};

struct TokenCase {
  const char* name;
  AttnShape shape;
  int64_t topk;
  TokenLists lists = TokenLists::kHoles;
  DType out_dtype = DType::kFloat32;
  bool strided = false;
};

struct RandomTokens {
  AttnShape shape;
  HostTensor q, k, v, dout, out, dq, dk, dv;
  std::vector<float> lse;
  std::vector<int32_t> indices;
  reference::TokenProblem problem;
  int64_t num_refused = 0;

  /// Without the heads that only make gaps.
  static TensorView part(HostTensor& tensor, int heads) {
    TensorView view = tensor.view();
    view.heads = heads;
    return view;
  }
  TokenIndices tokens() const { return {indices.data(), problem.topk}; }
  AttnForwardArgs forward_args() {
    AttnForwardArgs args;
    args.q = part(q, shape.num_heads_q), args.k = part(k, shape.num_heads_kv), args.v = part(v, shape.num_heads_kv);
    args.out = part(out, shape.num_heads_q), args.lse = lse.data();
    return args;
  }
  AttnBackwardArgs backward_args() {
    AttnBackwardArgs args;
    args.q = part(q, shape.num_heads_q), args.k = part(k, shape.num_heads_kv), args.v = part(v, shape.num_heads_kv);
    args.out = part(out, shape.num_heads_q), args.lse = lse.data(), args.dout = part(dout, shape.num_heads_q);
    args.dq = part(dq, shape.num_heads_q), args.dk = part(dk, shape.num_heads_kv),
    args.dv = part(dv, shape.num_heads_kv);
    return args;
  }
};

namespace token_problem {

/// One list. Returns whether it is refused.
inline bool fill_list(const TokenCase& c, int64_t row, std::mt19937& random, int32_t* list) {
  std::vector<int32_t> keys(static_cast<size_t>(c.shape.seqlen_k));
  std::iota(keys.begin(), keys.end(), 0);
  std::shuffle(keys.begin(), keys.end(), random);
  const auto seen = c.lists == TokenLists::kCausal ? row + 1 : c.topk;
  const int64_t count = std::min({c.topk, c.shape.seqlen_k, seen});
  std::fill_n(list, c.topk, -1);
  std::copy_n(keys.begin(), count, list);
  if (c.lists == TokenLists::kHoles) {
    for (int64_t n = 0; n < c.topk; ++n) {
      if (row % 5 == 1 || (row % 7 == 2 ? n != c.topk / 2 : random() % 4 == 0)) list[n] = -1;
    }
  }
  if (c.lists != TokenLists::kRefused || row % 3 == 0 || count < 2) return false;
  const int64_t place = static_cast<int64_t>(random() % static_cast<uint64_t>(count - 1));
  constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
  const int32_t wrong[] = {list[count - 1], static_cast<int32_t>(c.shape.seqlen_k), -2, kLowest};
  list[place] = wrong[random() % 4];
  return true;
}

/// Standard normal, rounded to the dtype, as the problem then has them; NaN in gaps and in values that, by `named`, are
/// not read.
inline HostTensor make(DType dtype, int64_t rows, int heads, int dim, bool strided, std::mt19937& random,
                       const std::vector<bool>& named, std::vector<double>& values) {
  const int gap = strided ? 1 : 0;
  HostTensor tensor(dtype, rows, heads + gap, dim);
  tensor.fill(std::numeric_limits<float>::quiet_NaN());
  std::normal_distribution<float> normal;
  values.assign(static_cast<size_t>(rows * heads * dim), 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int head = 0; head < heads; ++head) {
      const auto at = static_cast<size_t>(row * heads + head);
      for (int d = 0; d < dim; ++d) {
        if (!named.empty() && !named[at]) continue;
        tensor.set(row, head, d, normal(random));
        values[at * static_cast<size_t>(dim) + static_cast<size_t>(d)] = tensor.at(row, head, d);
      }
    }
  }
  return tensor;
}

}  // namespace token_problem

/// Keys that no list names are NaN.
inline RandomTokens make_tokens(const TokenCase& c, unsigned seed) {
  std::mt19937 random(seed);
  const AttnShape& s = c.shape;
  RandomTokens r;
  r.shape = s;
  r.indices.resize(static_cast<size_t>(s.seqlen_q * s.num_heads_kv * c.topk));
  std::vector<bool> named(static_cast<size_t>(s.seqlen_k * s.num_heads_kv), false);
  for (int64_t row = 0; row < s.seqlen_q; ++row) {
    for (int head = 0; head < s.num_heads_kv; ++head) {
      int32_t* list = r.indices.data() + (row * s.num_heads_kv + head) * c.topk;
      if (token_problem::fill_list(c, row, random, list)) {
        ++r.num_refused;
        continue;
      }
      for (int64_t n = 0; n < c.topk; ++n) {
        if (list[n] >= 0) named[static_cast<size_t>(int64_t{list[n]} * s.num_heads_kv + head)] = true;
      }
    }
  }
  reference::TokenProblem& p = r.problem;
  p.rows_q = s.seqlen_q, p.rows_k = s.seqlen_k, p.topk = c.topk;
  p.heads_q = s.num_heads_q, p.heads_kv = s.num_heads_kv, p.dim = s.head_dim, p.dim_v = s.head_dim_v;
  p.scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  p.indices = r.indices;
  using token_problem::make;
  r.q = make(s.dtype, s.seqlen_q, s.num_heads_q, s.head_dim, c.strided, random, {}, p.q);
  r.k = make(s.dtype, s.seqlen_k, s.num_heads_kv, s.head_dim, c.strided, random, named, p.k);
  r.v = make(s.dtype, s.seqlen_k, s.num_heads_kv, s.head_dim_v, c.strided, random, named, p.v);
  r.dout = make(s.dtype, s.seqlen_q, s.num_heads_q, s.head_dim_v, c.strided, random, {}, p.dout);
  const auto result = [&](int64_t rows, int heads, int dim) {
    HostTensor tensor(c.out_dtype, rows, heads + (c.strided ? 1 : 0), dim);
    tensor.fill(std::numeric_limits<float>::quiet_NaN());
    return tensor;
  };
  r.out = result(s.seqlen_q, s.num_heads_q, s.head_dim_v);
  r.dq = result(s.seqlen_q, s.num_heads_q, s.head_dim);
  r.dk = result(s.seqlen_k, s.num_heads_kv, s.head_dim);
  r.dv = result(s.seqlen_k, s.num_heads_kv, s.head_dim_v);
  r.lse.assign(static_cast<size_t>(s.seqlen_q * s.num_heads_q), std::numeric_limits<float>::quiet_NaN());
  return r;
}

/// `tolerance` of out: relative, in norm.
inline void expect_out(const RandomTokens& r, const reference::TokenResult& expected, double tolerance) {
  const AttnShape& s = r.shape;
  EXPECT_LT(support::relative_error(r.out, expected.out, s.num_heads_q, s.head_dim_v), tolerance);
  for (size_t i = 0; i < r.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      ASSERT_EQ(r.lse[i], expected.lse[i]) << "lse " << i;
      for (int d = 0; d < s.head_dim_v; ++d) {
        const auto row = static_cast<int64_t>(i) / s.num_heads_q;
        ASSERT_EQ(r.out.at(row, static_cast<int>(i) % s.num_heads_q, d), 0) << "row " << row;
      }
    } else {
      ASSERT_NEAR(r.lse[i], expected.lse[i], 1e-3) << "lse " << i;
    }
  }
}

inline void expect_gradients(const RandomTokens& r, const reference::TokenResult& expected, double tolerance) {
  const AttnShape& s = r.shape;
  EXPECT_LT(support::relative_error(r.dq, expected.dq, s.num_heads_q, s.head_dim), tolerance);
  EXPECT_LT(support::relative_error(r.dk, expected.dk, s.num_heads_kv, s.head_dim), tolerance);
  EXPECT_LT(support::relative_error(r.dv, expected.dv, s.num_heads_kv, s.head_dim_v), tolerance);
}

}  // namespace tangram::test
