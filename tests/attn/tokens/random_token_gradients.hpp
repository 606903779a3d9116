// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Random problems of gradients over token indices, with the answer of float64.
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

struct TokenCase {
  const char* name;
  AttnShape shape;
  int64_t topk;
  DType gradients = DType::kBFloat16;
  bool strided = false;  // tensors with gaps between heads and rows, out in the dtype of q
  bool near = false;     // queries in a row see mostly the same keys
};

/// Lists of all lengths, with -1 in between: of every seven queries one sees nothing, one sees one key, one has a list
/// that is refused. Where nobody looks there is NaN.
struct RandomTokens {
  TokenCase config;
  reference::TokenProblem problem;
  reference::TokenResult expected;
  HostTensor q, k, v, out, dout, dq, dk, dv;
  std::vector<float> lse;
  std::vector<int32_t> counts;     // as the check of lists leaves them
  std::vector<bool> sees, is_seen;  // [rows, num_heads_kv]: queries that see a key, keys that a query sees

  TensorView part(HostTensor& tensor, int heads) const {
    TensorView view = tensor.view();
    view.heads = heads;
    view.dim = config.shape.head_dim;
    return view;
  }
  TensorView of_queries(HostTensor& tensor) const { return part(tensor, config.shape.num_heads_q); }
  TensorView of_keys(HostTensor& tensor) const { return part(tensor, config.shape.num_heads_kv); }
  AttnBackwardArgs backward_args() {
    AttnBackwardArgs args;
    args.q = of_queries(q), args.k = of_keys(k), args.v = of_keys(v);
    args.out = of_queries(out), args.dout = of_queries(dout), args.lse = lse.data();
    args.dq = of_queries(dq), args.dk = of_keys(dk), args.dv = of_keys(dv);
    return args;
  }
  TokenIndices indices() const { return {problem.indices.data(), config.topk}; }
};

inline std::vector<int32_t> random_list(int64_t topk, int64_t keys, int kind, int64_t first, std::mt19937& random) {
  std::vector<int32_t> list(static_cast<size_t>(topk), -1);
  if (kind == 0 || topk == 0 || keys == 0) return list;
  std::vector<int32_t> all(static_cast<size_t>(keys));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  if (first >= 0) std::stable_sort(all.begin(), all.end(), [&](int a, int b) { return (a < first) > (b < first); });
  std::bernoulli_distribution names(0.9);
  size_t next = 0;
  const auto end = kind == 1 ? size_t{1} : static_cast<size_t>(std::min(topk, keys));
  for (int32_t& entry : list) {
    if (next < end && names(random)) entry = all[next++];
  }
  if (kind == 1) std::shuffle(list.begin(), list.end(), random);
  if (kind == 2 && topk > 1) {
    list[0] = list[static_cast<size_t>(topk) - 1] = 0;
    if (topk % 2 == 0) list[0] = static_cast<int32_t>(keys);
  }
  return list;
}

inline void make_lists(RandomTokens& r, std::mt19937& random) {
  reference::TokenProblem& p = r.problem;
  r.counts.assign(static_cast<size_t>(p.heads_kv * p.rows_q), 0);
  for (int64_t row = 0; row < p.rows_q; ++row) {
    for (int head = 0; head < p.heads_kv; ++head) {
      const int64_t first = r.config.near ? p.topk * 9 / 10 : -1;
      const std::vector<int32_t> list =
          random_list(p.topk, p.rows_k, static_cast<int>(row + head) % 7, first, random);
      p.indices.insert(p.indices.end(), list.begin(), list.end());
      if (p.keys(row, head).empty()) continue;
      int32_t& count = r.counts[static_cast<size_t>(head * p.rows_q + row)];
      for (int64_t n = 0; n < p.topk; ++n) count = list[static_cast<size_t>(n)] >= 0 ? static_cast<int32_t>(n + 1) : count;
    }
  }
}

inline RandomTokens make_random_tokens(const TokenCase& config, unsigned seed) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const AttnShape& s = config.shape;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  RandomTokens r;
  r.config = config;
  reference::TokenProblem& p = r.problem;
  p.rows_q = s.seqlen_q, p.rows_k = s.seqlen_k, p.topk = config.topk;
  p.heads_q = s.num_heads_q, p.heads_kv = s.num_heads_kv, p.dim = p.dim_v = s.head_dim;
  p.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  make_lists(r, random);
  r.sees.resize(static_cast<size_t>(p.rows_q * p.heads_kv));
  r.is_seen.resize(static_cast<size_t>(p.rows_k * p.heads_kv));
  for (int64_t row = 0; row < p.rows_q; ++row) {
    for (int head = 0; head < p.heads_kv; ++head) {
      for (const int64_t key : p.keys(row, head)) {
        r.is_seen[static_cast<size_t>(key * p.heads_kv + head)] = true;
        r.sees[static_cast<size_t>(row * p.heads_kv + head)] = true;
      }
    }
  }
  const auto make = [&](DType dtype, int64_t rows, int heads) {
    HostTensor tensor(dtype, rows, heads + (config.strided ? 1 : 0), s.head_dim + (config.strided ? 8 : 0));
    tensor.fill(kNan);  // outputs too: what is not written shows
    return tensor;
  };
  const auto fill = [&](HostTensor& to, std::vector<double>& values, int64_t rows, int heads,
                        const std::vector<bool>& used) {
    to = make(s.dtype, rows, heads);
    for (int64_t row = 0; row < rows; ++row) {
      for (int head = 0; head < heads; ++head) {
        const bool is_used = used[static_cast<size_t>((row * heads + head) * p.heads_kv / heads)];
        for (int d = 0; d < s.head_dim; ++d) {
          to.set(row, head, d, is_used ? normal(random) : kNan);
          values.push_back(to.at(row, head, d));
        }
      }
    }
  };
  fill(r.q, p.q, p.rows_q, p.heads_q, r.sees);
  fill(r.dout, p.dout, p.rows_q, p.heads_q, r.sees);
  fill(r.k, p.k, p.rows_k, p.heads_kv, r.is_seen);
  fill(r.v, p.v, p.rows_k, p.heads_kv, r.is_seen);
  r.expected = reference::token_attention(p);
  r.out = make(config.strided ? s.dtype : DType::kFloat32, p.rows_q, p.heads_q);
  for (size_t i = 0; i < r.expected.out.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / (p.heads_q * p.dim);
    r.out.set(row, static_cast<int>(static_cast<int64_t>(i) / p.dim % p.heads_q), static_cast<int>(i) % p.dim,
              static_cast<float>(r.expected.out[i]));
  }
  r.lse.assign(r.expected.lse.begin(), r.expected.lse.end());
  r.dq = make(config.gradients, p.rows_q, p.heads_q);
  r.dk = make(config.gradients, p.rows_k, p.heads_kv);
  r.dv = make(config.gradients, p.rows_k, p.heads_kv);
  return r;
}

/// P and dS are rounded to the dtype between matmuls, which shows in gradients as one or two parts of its resolution.
inline void expect_token_gradients(const RandomTokens& r) {
  const AttnShape& s = r.config.shape;
  const double tolerance = s.dtype == DType::kFloat16 ? 1.5e-3 : 8e-3;
  EXPECT_LT(support::relative_error(r.dq, r.expected.dq, s.num_heads_q, s.head_dim), tolerance);
  EXPECT_LT(support::relative_error(r.dk, r.expected.dk, s.num_heads_kv, s.head_dim), tolerance);
  EXPECT_LT(support::relative_error(r.dv, r.expected.dv, s.num_heads_kv, s.head_dim), tolerance);
  const auto expect_zeros = [&](const HostTensor& got, int heads, const std::vector<bool>& used) {
    for (int64_t row = 0; row < got.rows(); ++row) {
      for (int head = 0; head < heads; ++head) {
        if (used[static_cast<size_t>((row * heads + head) * s.num_heads_kv / heads)]) continue;
        for (int d = 0; d < s.head_dim; ++d) ASSERT_EQ(got.at(row, head, d), 0.0f) << "row " << row << ", head " << head;
      }
    }
  };
  expect_zeros(r.dq, s.num_heads_q, r.sees);
  expect_zeros(r.dk, s.num_heads_kv, r.is_seen);
  expect_zeros(r.dv, s.num_heads_kv, r.is_seen);
}

}  // namespace tangram::test
