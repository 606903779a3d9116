// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/dense_rows.hpp"

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

namespace tangram::cli {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One head of a tensor, `[rows, dim]`.
std::vector<double> head_of(const HostTensor& tensor, int head) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(tensor.rows() * tensor.dim()));
  for (int64_t row = 0; row < tensor.rows(); ++row) {
    for (int d = 0; d < tensor.dim(); ++d) values.push_back(tensor.at(row, head, d));
  }
  return values;
}

double dot(const double* a, const double* b, int n) {
  double sums[4] = {};
  int d = 0;
  for (; d + 4 <= n; d += 4) {
    for (int u = 0; u < 4; ++u) sums[u] += a[d + u] * b[d + u];
  }
  for (; d < n; ++d) sums[0] += a[d] * b[d];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void add_scaled(double factor, const double* b, int n, double* a) {
  for (int d = 0; d < n; ++d) a[d] += factor * b[d];
}

// A cell is visible iff some slice of the mask shows it: written out here, sharing nothing with what is verified.
void visible_keys(const Mask& mask, int64_t i, std::vector<int64_t>& keys) {
  keys.clear();
  for (const AttnSlice& slice : mask.slices()) {
    if (i < slice.q_range.begin || i >= slice.q_range.end) continue;
    for (int64_t j = slice.k_range.begin; j < slice.k_range.end; ++j) {
      if (j - i >= slice.min_diag && j - i <= slice.max_diag) keys.push_back(j);
    }
  }
}

void visible_queries(const Mask& mask, int64_t j, std::vector<int64_t>& queries) {
  queries.clear();
  for (const AttnSlice& slice : mask.slices()) {
    if (j < slice.k_range.begin || j >= slice.k_range.end) continue;
    for (int64_t i = slice.q_range.begin; i < slice.q_range.end; ++i) {
      if (j - i >= slice.min_diag && j - i <= slice.max_diag) queries.push_back(i);
    }
  }
}

void parallel_for(int num_threads, int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < num_threads; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return value;  // the reference stays in float64
    case DType::kBFloat16: return bfloat16_to_float(float_to_bfloat16(static_cast<float>(value)));
    case DType::kFloat16: return float16_to_float(float_to_float16(static_cast<float>(value)));
  }
  return value;
}

// One query head and its K/V head in float64.
class HeadPass {
 public:
  HeadPass(const DenseProblem& problem, int head, DenseRows& rows, RowStatistics& statistics)
      : problem_(problem),
        mask_(problem.masks[static_cast<size_t>(head) * problem.masks.size() /
                            static_cast<size_t>(problem.heads.num_heads_q)]),
        head_(head),
        rows_(rows),
        statistics_(statistics),
        dim_(problem.heads.head_dim),
        dim_v_(problem.heads.head_dim_v),
        kv_head_(head / (problem.heads.num_heads_q / problem.heads.num_heads_kv)),
        q_(head_of(problem.inputs->q, head)),
        k_(head_of(problem.inputs->k, kv_head_)),
        v_(head_of(problem.inputs->v, kv_head_)),
        dout_(head_of(problem.inputs->dout, head)) {}

  // out, lse and dq of one query row; returns the magnitude of dq.
  double query_row(size_t at, bool keep_statistics) {
    const int64_t i = rows_.q_rows[at];
    std::vector<int64_t> keys;
    visible_keys(mask_, i, keys);
    const size_t slot = at * static_cast<size_t>(problem_.heads.num_heads_q) + static_cast<size_t>(head_);
    double* out = &rows_.out[slot * static_cast<size_t>(dim_v_)];
    double* dq = &rows_.dq[slot * static_cast<size_t>(dim_)];
    std::vector<double> scores(keys.size());
    double max = -kInf;
    for (size_t n = 0; n < keys.size(); ++n) max = std::max(max, scores[n] = score(i, keys[n]));
    double sum = 0;
    for (const double s : scores) sum += std::exp(s - max);
    const double lse = keys.empty() ? -kInf : max + std::log(sum);
    rows_.lse[slot] = lse;
    // delta = rowsum(dout * out) = sum of p * dp, here without the detour through out.
    std::vector<double> p(keys.size()), dp(keys.size());
    double delta = 0;
    for (size_t n = 0; n < keys.size(); ++n) {
      p[n] = round(std::exp(scores[n] - lse));
      dp[n] = round(dot(row(dout_, i, dim_v_), row(v_, keys[n], dim_v_), dim_v_));
      delta += p[n] * dp[n];
      add_scaled(p[n], row(v_, keys[n], dim_v_), dim_v_, out);
    }
    double magnitude = 0;
    for (size_t n = 0; n < keys.size(); ++n) {
      add_scaled(round(p[n] * (dp[n] - delta)) * slope(scores[n]), row(k_, keys[n], dim_), dim_, dq);
      const double* key = row(k_, keys[n], dim_);
      magnitude += p[n] * (std::abs(dp[n]) + std::abs(delta)) * slope(scores[n]) * std::sqrt(dot(key, key, dim_));
    }
    for (int d = 0; d < dim_v_; ++d) out[d] = round(out[d]);
    for (int d = 0; d < dim_; ++d) dq[d] = round(dq[d]);
    if (keep_statistics) {
      const size_t global = static_cast<size_t>(i * problem_.heads.num_heads_q + head_);
      statistics_.lse[global] = lse;
      statistics_.delta[global] = delta;
    }
    return magnitude * magnitude;
  }

  // Adds this head's part to dk and dv of one key row; returns the magnitude of dk.
  double key_row(size_t at) {
    const int64_t j = rows_.k_rows[at];
    std::vector<int64_t> queries;
    visible_queries(mask_, j, queries);
    const size_t slot = at * static_cast<size_t>(problem_.heads.num_heads_kv) + static_cast<size_t>(kv_head_);
    double* dk = &rows_.dk[slot * static_cast<size_t>(dim_)];
    double* dv = &rows_.dv[slot * static_cast<size_t>(dim_v_)];
    double magnitude = 0;
    for (const int64_t i : queries) {
      const size_t global = static_cast<size_t>(i * problem_.heads.num_heads_q + head_);
      const double s = score(i, j);
      const double p = round(std::exp(s - statistics_.lse[global]));
      const double dp = round(dot(row(dout_, i, dim_v_), row(v_, j, dim_v_), dim_v_));
      const double delta = statistics_.delta[global];
      add_scaled(p, row(dout_, i, dim_v_), dim_v_, dv);
      add_scaled(round(p * (dp - delta)) * slope(s), row(q_, i, dim_), dim_, dk);
      const double* query = row(q_, i, dim_);
      magnitude += p * (std::abs(dp) + std::abs(delta)) * slope(s) * std::sqrt(dot(query, query, dim_));
    }
    return magnitude * magnitude;
  }

 private:
  static const double* row(const std::vector<double>& values, int64_t row, int dim) {
    return &values[static_cast<size_t>(row * dim)];
  }
  double round(double value) const { return rounded(value, problem_.rounding); }
  double score(int64_t i, int64_t j) const {
    const double s = problem_.softmax_scale * dot(row(q_, i, dim_), row(k_, j, dim_), dim_);
    return round(problem_.softcap > 0 ? problem_.softcap * std::tanh(s / problem_.softcap) : s);
  }
  // d(score) / d(q.k)
  double slope(double s) const {
    const double t = problem_.softcap > 0 ? s / problem_.softcap : 0;
    return problem_.softmax_scale * (1 - t * t);
  }

  const DenseProblem& problem_;
  const Mask& mask_;
  int head_;
  DenseRows& rows_;
  RowStatistics& statistics_;
  int dim_;
  int dim_v_;
  int kv_head_;
  std::vector<double> q_, k_, v_, dout_;
};

}  // namespace

DenseRows dense_rows(const DenseProblem& problem, std::vector<int64_t> q_rows, std::vector<int64_t> k_rows,
                     const RowStatistics* statistics) {
  const HeadConfig& heads = problem.heads;
  DenseRows rows;
  rows.q_rows = std::move(q_rows);
  rows.k_rows = std::move(k_rows);
  const size_t num_q = rows.q_rows.size() * static_cast<size_t>(heads.num_heads_q);
  const size_t num_k = rows.k_rows.size() * static_cast<size_t>(heads.num_heads_kv);
  rows.out.resize(num_q * static_cast<size_t>(heads.head_dim_v));
  rows.lse.resize(num_q);
  rows.dq.resize(num_q * static_cast<size_t>(heads.head_dim));
  rows.dk.resize(num_k * static_cast<size_t>(heads.head_dim));
  rows.dv.resize(num_k * static_cast<size_t>(heads.head_dim_v));

  RowStatistics own;
  if (statistics != nullptr) {
    own = *statistics;
  } else {
    own.lse.assign(static_cast<size_t>(problem.inputs->q.rows() * heads.num_heads_q), -kInf);
    own.delta.assign(own.lse.size(), 0);
  }
  double dq_squares = 0;
  double dk_squares = 0;
  for (int head = 0; head < heads.num_heads_q; ++head) {
    HeadPass pass(problem, head, rows, own);
    std::vector<double> q_squares(rows.q_rows.size()), k_squares(rows.k_rows.size());
    parallel_for(problem.num_threads, static_cast<int64_t>(rows.q_rows.size()), [&](int64_t at) {
      q_squares[static_cast<size_t>(at)] = pass.query_row(static_cast<size_t>(at), statistics == nullptr);
      if (problem.on_row) problem.on_row();
    });
    parallel_for(problem.num_threads, static_cast<int64_t>(rows.k_rows.size()), [&](int64_t at) {
      k_squares[static_cast<size_t>(at)] = pass.key_row(static_cast<size_t>(at));
      if (problem.on_row) problem.on_row();
    });
    for (const double square : q_squares) dq_squares += square;
    for (const double square : k_squares) dk_squares += square;
  }
  // Key gradients are rounded once all query heads of their group are in.
  for (std::vector<double>* values : {&rows.dk, &rows.dv}) {
    for (double& value : *values) value = rounded(value, problem.rounding);
  }
  rows.dq_magnitude = std::sqrt(dq_squares);
  rows.dk_magnitude = std::sqrt(dk_squares);
  return rows;
}

}  // namespace tangram::cli
