// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One query row at a time, everything in float64. The backward pass is parallel over KV heads, so that each gradient
// has one writer.
#include "attn/reference/reference_backend.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "attn/arguments.hpp"
#include "attn/probability.hpp"
#include "core/require.hpp"

namespace tangram {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class ReferenceMask final : public HostMask {
 public:
  ReferenceMask(std::span<const AttnSlice> slices_in, const AttnShape& shape_in)
      : slices(slices_in.begin(), slices_in.end()), shape(shape_in) {}

  // The keys that query row `i` sees.
  void keys_of(int64_t i, std::vector<int64_t>& keys) const {
    keys.clear();
    for (const AttnSlice& slice : slices) {
      if (!slice.q_range.contains(i)) continue;
      for (int64_t j = slice.k_range.begin; j < slice.k_range.end; ++j) {
        if (slice.visible(i, j)) keys.push_back(j);
      }
    }
  }

  std::vector<AttnSlice> slices;
  AttnShape shape;
};

float load(const ConstTensorView& view, int64_t row, int head, int d) {
  const int64_t index = row * view.row_stride + head * view.head_stride + d;
  switch (view.dtype) {
    case DType::kFloat32: return static_cast<const float*>(view.data)[index];
    case DType::kBFloat16: return bfloat16_to_float(static_cast<const uint16_t*>(view.data)[index]);
    case DType::kFloat16: return float16_to_float(static_cast<const uint16_t*>(view.data)[index]);
  }
  return 0;
}

void store(const TensorView& view, int64_t row, int head, int d, double value) {
  const int64_t index = row * view.row_stride + head * view.head_stride + d;
  const float rounded = static_cast<float>(value);
  switch (view.dtype) {
    case DType::kFloat32: static_cast<float*>(view.data)[index] = rounded; return;
    case DType::kBFloat16: static_cast<uint16_t*>(view.data)[index] = float_to_bfloat16(rounded); return;
    case DType::kFloat16: static_cast<uint16_t*>(view.data)[index] = float_to_float16(rounded); return;
  }
}

// One head of a tensor in float64, `[rows, dim]`.
std::vector<double> load_head(const ConstTensorView& view, int head) {
  std::vector<double> result(static_cast<size_t>(view.rows * view.dim));
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int d = 0; d < view.dim; ++d) result[static_cast<size_t>(row * view.dim + d)] = load(view, row, head, d);
  }
  return result;
}

void store_head(const TensorView& view, int head, const std::vector<double>& values, bool accumulate) {
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int d = 0; d < view.dim; ++d) {
      const double before = accumulate ? load(view, row, head, d) : 0;
      store(view, row, head, d, before + values[static_cast<size_t>(row * view.dim + d)]);
    }
  }
}

// Four partial sums, so that the adds do not wait for each other.
double dot(const double* a, const double* b, int n) {
  double sum[4] = {0, 0, 0, 0};
  int d = 0;
  for (; d + 4 <= n; d += 4) {
    for (int u = 0; u < 4; ++u) sum[u] += a[d + u] * b[d + u];
  }
  for (; d < n; ++d) sum[0] += a[d] * b[d];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void add_scaled(double* a, double factor, const double* b, int n) {
  for (int d = 0; d < n; ++d) a[d] += factor * b[d];
}

double log_add(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;  // std::max would drop one
  const double max = std::max(a, b);
  if (max == -kInf) return -kInf;
  return max + std::log1p(std::exp(std::min(a, b) - max));
}

struct ScoreRule {
  double scale;
  double softcap;
  double operator()(double raw) const {
    const double s = scale * raw;
    return softcap > 0 ? softcap * std::tanh(s / softcap) : s;
  }
  // d(score) / d(raw dot product)
  double slope(double score) const {
    if (softcap <= 0) return scale;
    const double t = score / softcap;
    return scale * (1 - t * t);
  }
};

ScoreRule score_rule(const AttnOptions& options, const AttnShape& shape) {
  return {softmax_scale_of(options, shape), options.softcap};
}

/// `check` is called for each row, and throws if the call is to end.
template <class Check>
void forward_head(const ReferenceMask& mask, const AttnForwardArgs& args, int head, const Check& check) {
  const AttnShape& shape = mask.shape;
  const ScoreRule rule = score_rule(args.options, shape);
  const int kv_head = head / (shape.num_heads_q / shape.num_heads_kv);
  const std::vector<double> q = load_head(args.q, head), k = load_head(args.k, kv_head), v = load_head(args.v, kv_head);
  const int dim = shape.head_dim, dim_v = shape.head_dim_v;
  std::vector<int64_t> keys;
  std::vector<double> scores, row(static_cast<size_t>(dim_v));
  double max_logit = args.accumulate && args.max_logits != nullptr ? args.max_logits[head] : -kInf;
  for (int64_t i = 0; i < shape.seqlen_q; ++i) {
    check();
    mask.keys_of(i, keys);
    scores.resize(keys.size());
    double max = -kInf;
    for (size_t n = 0; n < keys.size(); ++n) {
      const double raw = dot(&q[static_cast<size_t>(i * dim)], &k[static_cast<size_t>(keys[n] * dim)], dim);
      max_logit = std::max(max_logit, rule.scale * raw);
      scores[n] = rule(raw);
      max = std::max(max, scores[n]);
    }
    double sum = 0;
    std::fill(row.begin(), row.end(), 0);
    for (size_t n = 0; n < keys.size(); ++n) {
      const double p = std::exp(scores[n] - max);
      sum += p;
      add_scaled(row.data(), p, &v[static_cast<size_t>(keys[n] * dim_v)], dim_v);
    }
    const double lse_new = keys.empty() ? -kInf : max + std::log(sum);
    float& lse = args.lse[i * shape.num_heads_q + head];
    const double lse_old = args.accumulate ? lse : -kInf;
    const double total = log_add(log_add(lse_new, lse_old), sink_lse(args.sink, shape.num_heads_q, i, head));
    const double factor = keys.empty() ? 0 : std::exp(lse_new - total) / sum;
    for (int d = 0; d < dim_v; ++d) {
      const double before = lse_old == -kInf ? 0 : std::exp(lse_old - total) * load(args.out, i, head, d);
      store(args.out, i, head, d, before + (keys.empty() ? 0 : factor * row[static_cast<size_t>(d)]));
    }
    lse = static_cast<float>(total);
  }
  if (args.max_logits != nullptr) args.max_logits[head] = static_cast<float>(max_logit);
}

// Products with an exact zero are left out, so that a poisoned dout of a row without keys reaches nothing.
double delta_of(const AttnBackwardArgs& args, int64_t row, int head, int dim_v) {
  if (args.delta != nullptr) return args.delta[row * args.q.heads + head];
  double delta = 0;
  for (int d = 0; d < dim_v; ++d) {
    const double out = load(args.out, row, head, d);
    if (out != 0) delta += out * load(args.dout, row, head, d);
  }
  return delta;
}

void backward_sink(const AttnBackwardArgs& args, const AttnShape& shape, int64_t row, int head, double delta,
                   const RowProbability& probability) {
  const float lse = args.lse[row * shape.num_heads_q + head];
  for (int64_t s = 0; s < args.sink.seqlen_sink; ++s) {
    const int64_t at = sink_offset(args.sink, shape.num_heads_q, row, s, head);
    const double p = lse == -kInf ? 0 : probability(args.sink.data[at]);
    args.dsink[at] -= static_cast<float>(p * delta);
  }
}

template <class Check>
void backward_kv_head(const ReferenceMask& mask, const AttnBackwardArgs& args, int kv_head, const Check& check) {
  const AttnShape& shape = mask.shape;
  const ScoreRule rule = score_rule(args.options, shape);
  const int group = shape.num_heads_q / shape.num_heads_kv;
  const int dim = shape.head_dim, dim_v = shape.head_dim_v;
  const std::vector<double> k = load_head(args.k, kv_head), v = load_head(args.v, kv_head);
  std::vector<double> dk(k.size(), 0), dv(v.size(), 0);
  std::vector<int64_t> keys;
  std::vector<double> scores;
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const std::vector<double> q = load_head(args.q, head), dout = load_head(args.dout, head);
    std::vector<double> dq(q.size(), 0);
    for (int64_t i = 0; i < shape.seqlen_q; ++i) {
      check();
      const float lse = args.lse[i * shape.num_heads_q + head];
      mask.keys_of(i, keys);
      const double* q_row = &q[static_cast<size_t>(i * dim)];
      const double* dout_row = &dout[static_cast<size_t>(i * dim_v)];
      const auto dp = [&](int64_t j) { return dot(dout_row, &v[static_cast<size_t>(j * dim_v)], dim_v); };
      scores.clear();
      for (const int64_t j : keys) scores.push_back(rule(dot(q_row, &k[static_cast<size_t>(j * dim)], dim)));
      const RowProbability probability(scores, sink_lse(args.sink, shape.num_heads_q, i, head), lse);
      double delta = 0;
      if (probability.is_whole()) {
        for (size_t n = 0; n < keys.size(); ++n) delta += probability(scores[n]) * dp(keys[n]);
      } else {
        delta = delta_of(args, i, head, dim_v);
      }
      if (args.dsink != nullptr) backward_sink(args, shape, i, head, delta, probability);
      if (std::isinf(lse) && lse < 0) continue;
      for (size_t n = 0; n < keys.size(); ++n) {
        const int64_t j = keys[n];
        const double* k_row = &k[static_cast<size_t>(j * dim)];
        const double p = probability(scores[n]);
        const double ds = p * (dp(j) - delta) * rule.slope(scores[n]);
        add_scaled(&dv[static_cast<size_t>(j * dim_v)], p, dout_row, dim_v);
        add_scaled(&dk[static_cast<size_t>(j * dim)], ds, q_row, dim);
        add_scaled(&dq[static_cast<size_t>(i * dim)], ds, k_row, dim);
      }
    }
    store_head(args.dq, head, dq, args.accumulate_dq);
  }
  store_head(args.dk, kv_head, dk, args.accumulate_dkv);
  store_head(args.dv, kv_head, dv, args.accumulate_dkv);
}

}  // namespace

ReferenceBackend::ReferenceBackend(int num_threads) : pool_(num_threads) {}

std::unique_ptr<HostMask> ReferenceBackend::prepare(std::span<const AttnSlice> slices, const AttnShape& shape) const {
  validate_mask("ReferenceBackend::build", slices, shape);
  return std::make_unique<ReferenceMask>(slices, shape);
}

void ReferenceBackend::forward_of(HostMask& mask, const AttnForwardArgs& args) const {
  const auto& prepared = dynamic_cast<ReferenceMask&>(mask);
  validate_forward("ReferenceBackend::forward", prepared.shape, args);
  pool_.parallel_for(prepared.shape.num_heads_q, [&](int64_t head, int thread_idx) {
    forward_head(prepared, args, static_cast<int>(head), [&] { pool_.check(thread_idx); });
  });
}

void ReferenceBackend::backward_of(HostMask& mask, const AttnBackwardArgs& args) const {
  const auto& prepared = dynamic_cast<ReferenceMask&>(mask);
  validate_backward("ReferenceBackend::backward", prepared.shape, args);
  if (args.dsink != nullptr) {
    const int64_t num_sets = args.sink.layout == SinkLayout::kSh ? 1 : prepared.shape.seqlen_q;
    std::fill_n(args.dsink, num_sets * args.sink.seqlen_sink * prepared.shape.num_heads_q, 0.0f);
  }
  pool_.parallel_for(prepared.shape.num_heads_kv, [&](int64_t head, int thread_idx) {
    backward_kv_head(prepared, args, static_cast<int>(head), [&] { pool_.check(thread_idx); });
  });
}

}  // namespace tangram
