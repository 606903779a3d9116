// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What tests of gradients over token indices add to their problems: NaN in values that must not be read, results of the
// forward pass, and zeros that must be zeros.
#pragma once

#include "attn/token_problem.hpp"

namespace tangram::test {

/// Queries that see nothing become NaN.
inline void poison_blind_queries(RandomTokens& r) {
  const AttnShape& s = r.shape;
  for (int64_t row = 0; row < s.seqlen_q; ++row) {
    for (int head = 0; head < s.num_heads_q; ++head) {
      if (!r.problem.keys(row, head / (s.num_heads_q / s.num_heads_kv)).empty()) continue;
      for (int d = 0; d < s.head_dim; ++d) {
        r.q.set(row, head, d, std::numeric_limits<float>::quiet_NaN());
        r.dout.set(row, head, d, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
}

/// out and lse as a forward pass would have left them.
inline void fill_results(RandomTokens& r, const reference::TokenResult& expected) {
  const AttnShape& s = r.shape;
  for (size_t i = 0; i < r.lse.size(); ++i) {
    r.lse[i] = static_cast<float>(expected.lse[i]);
    for (int d = 0; d < s.head_dim_v; ++d) {
      r.out.set(static_cast<int64_t>(i) / s.num_heads_q, static_cast<int>(i) % s.num_heads_q, d,
                static_cast<float>(expected.out[i * static_cast<size_t>(s.head_dim_v) + static_cast<size_t>(d)]));
    }
  }
}

/// Gradients of queries that see nothing, and of keys that no query sees, are zeros.
inline void expect_zeros(const RandomTokens& r) {
  const AttnShape& s = r.shape;
  std::vector<bool> is_seen(static_cast<size_t>(s.seqlen_k * s.num_heads_kv));
  for (int64_t row = 0; row < s.seqlen_q; ++row) {
    for (int head = 0; head < s.num_heads_q; ++head) {
      const int kv_head = head / (s.num_heads_q / s.num_heads_kv);
      const std::vector<int64_t> keys = r.problem.keys(row, kv_head);
      for (const int64_t key : keys) is_seen[static_cast<size_t>(key * s.num_heads_kv + kv_head)] = true;
      for (int d = 0; d < s.head_dim && keys.empty(); ++d) ASSERT_EQ(r.dq.at(row, head, d), 0) << "query " << row;
    }
  }
  for (size_t i = 0; i < is_seen.size(); ++i) {
    if (is_seen[i]) continue;
    const auto row = static_cast<int64_t>(i) / s.num_heads_kv;
    for (int d = 0; d < s.head_dim; ++d) {
      ASSERT_EQ(r.dk.at(row, static_cast<int>(i) % s.num_heads_kv, d), 0) << "key " << row;
      ASSERT_EQ(r.dv.at(row, static_cast<int>(i) % s.num_heads_kv, d), 0) << "key " << row;
    }
  }
}

/// P and dS are rounded to the dtype between matmuls, which shows in gradients as one or two parts of its resolution,
/// as does the rounding of out, of which delta is made.
constexpr double gradient_tolerance(DType dtype) { return dtype == DType::kFloat16 ? 1.5e-3 : 8e-3; }

/// NaN in an element of a key, and of a value: the first that one query names of K/V head 0 of two, and another of 1.
class NamedNans {
 public:
  NamedNans(RandomTokens& r, int64_t query_of_key, int64_t query_of_value)
      : keys_{spoil(r.k, r.problem.k, r.problem, query_of_key, 0),
              spoil(r.v, r.problem.v, r.problem, query_of_value, 1)} {}

  /// NaN for queries that name them, and dk of what these name; all else as expected. dv may be NaN where dk is.
  void expect_gradients(const RandomTokens& r, const reference::TokenResult& expected) const {
    const reference::TokenProblem& p = r.problem;
    std::vector<bool> queries(static_cast<size_t>(p.rows_q * 2)), keys(static_cast<size_t>(p.rows_k * 2));
    for (size_t i = 0; i < queries.size(); ++i) {
      const std::vector<int64_t> list = p.keys(static_cast<int64_t>(i / 2), static_cast<int>(i % 2));
      if (std::find(list.begin(), list.end(), keys_[i % 2]) == list.end()) continue;
      queries[i] = true;
      for (const int64_t key : list) keys[static_cast<size_t>(key) * 2 + i % 2] = true;
    }
    expect(r.dq, expected.dq, queries, true);
    expect(r.dk, expected.dk, keys, true);
    expect(r.dv, expected.dv, keys, false);
  }

 private:
  static int64_t spoil(HostTensor& tensor, std::vector<double>& values, const reference::TokenProblem& p, int64_t query,
                       int head) {
    const int64_t key = p.keys(query, head)[0];
    const int column = p.dim / 2 + 13;
    tensor.set(key, head, column, std::numeric_limits<float>::quiet_NaN());
    values[static_cast<size_t>((key * 2 + head) * p.dim + column)] = std::numeric_limits<double>::quiet_NaN();
    return key;
  }

  static void expect(const HostTensor& got, const std::vector<double>& want, const std::vector<bool>& meets,
                     bool shows) {
    const auto heads = static_cast<size_t>(got.heads()), dim = static_cast<size_t>(got.dim());
    support::RelativeError error;
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t at = i / dim;
      const float x = got.at(static_cast<int64_t>(at / heads), static_cast<int>(at % heads), static_cast<int>(i % dim));
      if (!meets[at * 2 / heads]) {
        error.add(x, want[i]);
      } else if (shows) {
        ASSERT_TRUE(std::isnan(x));
      }
    }
    EXPECT_LT(error.value(), gradient_tolerance(DType::kBFloat16));
  }

  int64_t keys_[2];
};

}  // namespace tangram::test
