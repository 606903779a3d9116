// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What tests of gradients over token indices add to their problems: NaN where nobody looks, results of the forward
// pass, and zeros that must be zeros.
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

/// Gradients of queries that see nothing, and of keys that nobody sees, are zeros.
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

}  // namespace tangram::test
