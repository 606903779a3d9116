// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention over keys that are named one by one, in float64, list by list as its definition says. Shares no code with
// backends. For small sizes only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace tangram::reference {

struct TokenProblem {
  int64_t rows_q = 0, rows_k = 0, topk = 0;
  int heads_q = 1, heads_kv = 1, dim = 1, dim_v = 1;
  double scale = 1;
  std::vector<int32_t> indices;       // [rows_q, heads_kv, topk]
  std::vector<double> q, k, v, dout;  // row-major [rows, heads, dim]; no dout: forward alone

  const int32_t* list(int64_t row, int kv_head) const {
    return &indices[static_cast<size_t>((row * heads_kv + kv_head) * topk)];
  }

  /// The keys of a list; none of one that is refused.
  std::vector<int64_t> keys(int64_t row, int kv_head) const {
    std::vector<int64_t> result;
    for (int64_t n = 0; n < topk; ++n) {
      const int64_t key = list(row, kv_head)[n];
      if (key == -1) continue;
      if (key < -1 || key >= rows_k || std::find(result.begin(), result.end(), key) != result.end()) return {};
      result.push_back(key);
    }
    return result;
  }
};

struct TokenResult {
  std::vector<double> out, lse, dq, dk, dv;
};

/// Rows of keys that no list names are never touched.
inline TokenResult token_attention(const TokenProblem& p) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto at = [](int64_t row, int heads, int head, int dim) {
    return static_cast<size_t>((row * heads + head) * dim);
  };
  TokenResult r;
  r.out.assign(at(p.rows_q, p.heads_q, 0, p.dim_v), 0);
  r.lse.assign(at(p.rows_q, p.heads_q, 0, 1), -inf);
  if (!p.dout.empty()) {
    r.dq.assign(p.q.size(), 0);
    r.dk.assign(p.k.size(), 0);
    r.dv.assign(p.v.size(), 0);
  }
  const auto dot = [](const double* a, const double* b, int n) {
    double sum = 0;
    for (int d = 0; d < n; ++d) sum += a[d] * b[d];
    return sum;
  };
  for (int h = 0; h < p.heads_q; ++h) {
    const int g = h / (p.heads_q / p.heads_kv);
    for (int64_t i = 0; i < p.rows_q; ++i) {
      const std::vector<int64_t> keys = p.keys(i, g);
      if (keys.empty()) continue;
      const double* q = &p.q[at(i, p.heads_q, h, p.dim)];
      std::vector<double> scores;
      for (const int64_t j : keys) scores.push_back(p.scale * dot(q, &p.k[at(j, p.heads_kv, g, p.dim)], p.dim));
      const double max = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (const double s : scores) sum += std::exp(s - max);
      const double lse = r.lse[at(i, p.heads_q, h, 1)] = max + std::log(sum);
      double* out = &r.out[at(i, p.heads_q, h, p.dim_v)];
      for (size_t n = 0; n < keys.size(); ++n) {
        const double* v = &p.v[at(keys[n], p.heads_kv, g, p.dim_v)];
        const double prob = std::exp(scores[n] - lse);
        for (int d = 0; d < p.dim_v; ++d) out[d] += prob * v[d];
      }
      if (p.dout.empty()) continue;
      const double* dout = &p.dout[at(i, p.heads_q, h, p.dim_v)];
      const double delta = dot(dout, out, p.dim_v);
      for (size_t n = 0; n < keys.size(); ++n) {
        const size_t key = at(keys[n], p.heads_kv, g, p.dim), value = at(keys[n], p.heads_kv, g, p.dim_v);
        const double prob = std::exp(scores[n] - lse);
        const double ds = p.scale * prob * (dot(dout, &p.v[value], p.dim_v) - delta);
        for (int d = 0; d < p.dim_v; ++d) r.dv[value + static_cast<size_t>(d)] += prob * dout[d];
        for (int d = 0; d < p.dim; ++d) {
          r.dk[key + static_cast<size_t>(d)] += ds * q[d];
          r.dq[at(i, p.heads_q, h, p.dim) + static_cast<size_t>(d)] += ds * p.k[key + static_cast<size_t>(d)];
        }
      }
    }
  }
  return r;
}

}  // namespace tangram::reference
