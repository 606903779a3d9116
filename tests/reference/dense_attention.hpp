// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Dense attention in float64 with a mask of its own: every cell is decided by the definitions of the published mask
// types or of a band, written out here once more. Shares no code with slices or backends. For small sizes only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/vector_sums.hpp"

namespace tangram::reference {

/// One region of a mask: a rectangle and either a published type (0 full, 1 causal, 2 inverse causal, 3 bi-causal) or,
/// with type -1, a band of j - i.
struct DenseRegion {
  int64_t q_begin, q_end, k_begin, k_end;
  int type = 0;
  int64_t band_min = 0, band_max = 0;

  bool shows(int64_t i, int64_t j) const {
    if (i < q_begin || i >= q_end || j < k_begin || j >= k_end) return false;
    const bool right = (k_end - 1) - j >= (q_end - 1) - i;  // aligned at the bottom right corner
    const bool left = j - k_begin >= i - q_begin;           // aligned at the top left corner
    switch (type) {
      case 0: return true;
      case 1: return right;
      case 2: return left;
      case 3: return left && right;
      default: return band_min <= j - i && j - i <= band_max;
    }
  }
};

struct DenseProblem {
  int64_t rows_q = 0, rows_k = 0;
  int heads_q = 1, heads_kv = 1, dim = 1, dim_v = 1;
  double scale = 1, softcap = 0;
  int64_t rows_sink = 0;
  bool sink_per_row = false;
  std::vector<DenseRegion> regions;
  /// Rounds scores, probabilities, their gradients and all outputs, as a naive pass in a 16-bit dtype does; null:
  /// exact.
  double (*round)(double) = nullptr;
  std::vector<double> q, k, v, dout, sink;  // row-major [rows, heads, dim]; sink [rows or 1, rows_sink, heads_q]
};

struct DenseResult {
  std::vector<double> out, lse, max_logits, dq, dk, dv, dsink;
};

/// Forward, and backward when `dout` is given. Cells that no region shows are never touched.
inline DenseResult dense_attention(const DenseProblem& p) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto round = [&p](double x) { return p.round == nullptr ? x : p.round(x); };
  const auto size = [](int64_t a, int64_t b, int64_t c) { return static_cast<size_t>(a * b * c); };
  DenseResult r;
  r.out.assign(size(p.rows_q, p.heads_q, p.dim_v), 0);
  r.lse.assign(size(p.rows_q, p.heads_q, 1), -inf);
  r.max_logits.assign(static_cast<size_t>(p.heads_q), -inf);
  r.dq.assign(p.q.size(), 0);
  r.dk.assign(p.k.size(), 0);
  r.dv.assign(p.v.size(), 0);
  r.dsink.assign(p.sink.size(), 0);
  // Once for all heads: masks of small blocks have hundreds of regions.
  std::vector<char> cells(size(p.rows_q, p.rows_k, 1));
  for (const DenseRegion& region : p.regions) {
    for (int64_t i = std::max<int64_t>(region.q_begin, 0); i < std::min(region.q_end, p.rows_q); ++i) {
      for (int64_t j = std::max<int64_t>(region.k_begin, 0); j < std::min(region.k_end, p.rows_k); ++j) {
        if (region.shows(i, j)) cells[size(i, p.rows_k, 1) + static_cast<size_t>(j)] = 1;
      }
    }
  }
  std::vector<double> score(static_cast<size_t>(p.rows_k)), slope(score.size());
  for (int h = 0; h < p.heads_q; ++h) {
    const int g = h / (p.heads_q / p.heads_kv);
    for (int64_t i = 0; i < p.rows_q; ++i) {
      const double* q = &p.q[size(i * p.heads_q + h, p.dim, 1)];
      const char* seen = cells.data() + size(i, p.rows_k, 1);
      double max = -inf;
      for (int64_t j = 0; j < p.rows_k; ++j) {
        if (!seen[j]) continue;
        const double* k = &p.k[size(j * p.heads_kv + g, p.dim, 1)];
        const double s = round(dot(q, k, p.dim) * p.scale);
        r.max_logits[static_cast<size_t>(h)] = std::max(r.max_logits[static_cast<size_t>(h)], s);
        const double t = p.softcap > 0 ? std::tanh(s / p.softcap) : 0;
        slope[static_cast<size_t>(j)] = 1 - t * t;
        score[static_cast<size_t>(j)] = p.softcap > 0 ? p.softcap * t : s;
        max = std::max(max, score[static_cast<size_t>(j)]);
      }
      const auto sink_at = [&](int64_t s) {
        return size((p.sink_per_row ? i : 0) * p.rows_sink + s, p.heads_q, 1) + static_cast<size_t>(h);
      };
      for (int64_t s = 0; s < p.rows_sink; ++s) max = std::max(max, p.sink[sink_at(s)]);
      if (max == -inf) continue;
      double sum = 0;
      for (int64_t s = 0; s < p.rows_sink; ++s) sum += std::exp(p.sink[sink_at(s)] - max);
      for (int64_t j = 0; j < p.rows_k; ++j) sum += seen[j] ? std::exp(score[static_cast<size_t>(j)] - max) : 0;
      const double lse = max + std::log(sum);
      r.lse[size(i * p.heads_q + h, 1, 1)] = lse;
      double* out = &r.out[size(i * p.heads_q + h, p.dim_v, 1)];
      for (int64_t j = 0; j < p.rows_k; ++j) {
        if (!seen[j]) continue;
        const double prob = round(std::exp(score[static_cast<size_t>(j)] - lse));
        add_scaled(prob, &p.v[size(j * p.heads_kv + g, p.dim_v, 1)], out, p.dim_v);
      }
      if (p.dout.empty()) continue;
      const double* dout = &p.dout[size(i * p.heads_q + h, p.dim_v, 1)];
      double delta = 0;
      for (int d = 0; d < p.dim_v; ++d) delta += out[d] == 0 ? 0 : dout[d] * out[d];
      for (int64_t s = 0; s < p.rows_sink; ++s) r.dsink[sink_at(s)] -= std::exp(p.sink[sink_at(s)] - lse) * delta;
      for (int64_t j = 0; j < p.rows_k; ++j) {
        if (!seen[j]) continue;
        const double prob = round(std::exp(score[static_cast<size_t>(j)] - lse));
        const size_t k_at = size(j * p.heads_kv + g, p.dim, 1), v_at = size(j * p.heads_kv + g, p.dim_v, 1);
        const double dprob = dot(dout, &p.v[v_at], p.dim_v);
        add_scaled(prob, dout, &r.dv[v_at], p.dim_v);
        const double ds = round(prob * (round(dprob) - delta)) * slope[static_cast<size_t>(j)] * p.scale;
        add_scaled(ds, &p.k[k_at], &r.dq[size(i * p.heads_q + h, p.dim, 1)], p.dim);
        add_scaled(ds, q, &r.dk[k_at], p.dim);
      }
    }
  }
  for (std::vector<double>* values : {&r.out, &r.dq, &r.dk, &r.dv}) {
    for (double& x : *values) x = round(x);
  }
  return r;
}

}  // namespace tangram::reference
