// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Random attention problems, run through a backend and through the dense float64 reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "reference/cells.hpp"
#include "reference/dense_attention.hpp"
#include "tangram/attention.hpp"
#include "tangram/backends.hpp"

namespace tangram::test {

struct RandomConfig {
  AttnShape shape;
  float softcap = 0;
  std::optional<float> scale;
  int64_t seqlen_sink = 0;
  SinkLayout sink_layout = SinkLayout::kSh;
  bool poison = true;  // NaN in all rows of q, k, v, dout that no slice covers
  bool strided = false;
  int gap = 3;  // elements between the heads of strided problems
  DType grad_dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;
};

/// Everything that one call needs. Views of strided problems leave gaps between heads and rows, filled with NaN.
struct RandomAttention {
  RandomConfig config;
  std::vector<AttnSlice> slices;
  HostTensor q, k, v, dout;
  HostTensor out, dq, dk, dv;
  std::vector<float> lse, max_logits, sink, dsink;
  reference::DenseProblem problem;

  TensorView part(HostTensor& tensor, int heads, int dim) const {
    TensorView view = tensor.view();
    view.heads = heads;
    view.dim = dim;
    return view;
  }
  TensorView q_view() { return part(q, config.shape.num_heads_q, config.shape.head_dim); }
  TensorView k_view() { return part(k, config.shape.num_heads_kv, config.shape.head_dim); }
  TensorView v_view() { return part(v, config.shape.num_heads_kv, config.shape.head_dim_v); }
  TensorView dout_view() { return part(dout, config.shape.num_heads_q, config.shape.head_dim_v); }
  TensorView out_view() { return part(out, config.shape.num_heads_q, config.shape.head_dim_v); }
  TensorView dq_view() { return part(dq, config.shape.num_heads_q, config.shape.head_dim); }
  TensorView dk_view() { return part(dk, config.shape.num_heads_kv, config.shape.head_dim); }
  TensorView dv_view() { return part(dv, config.shape.num_heads_kv, config.shape.head_dim_v); }
  Sink sink_view() const { return {sink.data(), config.seqlen_sink, config.sink_layout}; }
  AttnOptions options() const {
    AttnOptions options;
    options.softmax_scale = config.scale;
    options.softcap = config.softcap;
    return options;
  }
  AttnForwardArgs forward_args() {
    AttnForwardArgs args;
    args.q = q_view(), args.k = k_view(), args.v = v_view(), args.out = out_view();
    args.lse = lse.data(), args.max_logits = max_logits.data();
    args.sink = sink_view(), args.options = options();
    return args;
  }
  AttnBackwardArgs backward_args() {
    AttnBackwardArgs args;
    args.q = q_view(), args.k = k_view(), args.v = v_view(), args.out = out_view(), args.dout = dout_view();
    args.lse = lse.data(), args.dq = dq_view(), args.dk = dk_view(), args.dv = dv_view();
    args.sink = sink_view(), args.dsink = config.seqlen_sink > 0 ? dsink.data() : nullptr;
    args.options = options();
    return args;
  }
};

inline RandomAttention make_random(const RandomConfig& config, std::vector<AttnSlice> slices, unsigned seed) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const AttnShape& s = config.shape;
  RandomAttention r;
  r.config = config;
  r.slices = std::move(slices);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<bool> q_seen(static_cast<size_t>(s.seqlen_q)), k_seen(static_cast<size_t>(s.seqlen_k));
  const reference::Cells cells(s.seqlen_q, s.seqlen_k, r.slices);
  for (int64_t i = 0; i < s.seqlen_q; ++i) {
    for (int64_t j = 0; j < s.seqlen_k; ++j) {
      if (cells.count(i, j) > 0) q_seen[static_cast<size_t>(i)] = k_seen[static_cast<size_t>(j)] = true;
    }
  }
  const int gap = config.strided ? config.gap : 0;
  const auto make = [&](DType dtype, int64_t rows, int heads, int dim) {
    HostTensor tensor(dtype, rows, heads + (config.strided ? 1 : 0), dim + gap);
    tensor.fill(kNan);  // outputs too: what is not written shows
    return tensor;
  };
  const auto fill = [&](HostTensor& to, std::vector<double>& values, int heads, int dim,
                        const std::vector<bool>& seen) {
    for (int64_t row = 0; row < to.rows(); ++row) {
      for (int h = 0; h < heads; ++h) {
        for (int d = 0; d < dim; ++d) {
          to.set(row, h, d, config.poison && !seen[static_cast<size_t>(row)] ? kNan : normal(rng));
          values.push_back(to.at(row, h, d));
        }
      }
    }
  };
  reference::DenseProblem& p = r.problem;
  fill(r.q = make(s.dtype, s.seqlen_q, s.num_heads_q, s.head_dim), p.q, s.num_heads_q, s.head_dim, q_seen);
  fill(r.k = make(s.dtype, s.seqlen_k, s.num_heads_kv, s.head_dim), p.k, s.num_heads_kv, s.head_dim, k_seen);
  fill(r.v = make(s.dtype, s.seqlen_k, s.num_heads_kv, s.head_dim_v), p.v, s.num_heads_kv, s.head_dim_v, k_seen);
  fill(r.dout = make(s.dtype, s.seqlen_q, s.num_heads_q, s.head_dim_v), p.dout, s.num_heads_q, s.head_dim_v, q_seen);
  r.out = make(config.out_dtype, s.seqlen_q, s.num_heads_q, s.head_dim_v);
  r.dq = make(config.grad_dtype, s.seqlen_q, s.num_heads_q, s.head_dim);
  r.dk = make(config.grad_dtype, s.seqlen_k, s.num_heads_kv, s.head_dim);
  r.dv = make(config.grad_dtype, s.seqlen_k, s.num_heads_kv, s.head_dim_v);
  r.lse.assign(static_cast<size_t>(s.seqlen_q * s.num_heads_q), kNan);
  r.max_logits.assign(static_cast<size_t>(s.num_heads_q), kNan);
  const bool per_row = config.sink_layout == SinkLayout::kSsh;
  r.sink.resize(static_cast<size_t>((per_row ? s.seqlen_q : 1) * config.seqlen_sink * s.num_heads_q));
  for (float& value : r.sink) value = normal(rng);
  r.dsink.assign(r.sink.size(), kNan);
  p.rows_q = s.seqlen_q, p.rows_k = s.seqlen_k, p.heads_q = s.num_heads_q, p.heads_kv = s.num_heads_kv;
  p.dim = s.head_dim, p.dim_v = s.head_dim_v, p.softcap = config.softcap;
  p.scale = config.scale.value_or(1 / std::sqrt(static_cast<float>(s.head_dim)));
  p.rows_sink = config.seqlen_sink, p.sink_per_row = per_row;
  p.sink.assign(r.sink.begin(), r.sink.end());
  for (const AttnSlice& slice : r.slices) {
    p.regions.push_back({slice.q_range.begin, slice.q_range.end, slice.k_range.begin, slice.k_range.end, -1,
                         slice.min_diag, slice.max_diag});
  }
  return r;
}

inline std::vector<double> values_of(const TensorView& view, const HostTensor& tensor) {
  std::vector<double> values;
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int h = 0; h < view.heads; ++h) {
      for (int d = 0; d < view.dim; ++d) values.push_back(tensor.at(row, h, d));
    }
  }
  return values;
}

/// |a - b| and |b| over all elements; equal infinities count for nothing. NaN anywhere gives NaN.
struct Distance {
  double error = 0;
  double norm = 0;
};
inline Distance distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  Distance sum;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(b[i]) && a[i] == b[i]) continue;
    sum.error += (a[i] - b[i]) * (a[i] - b[i]);
    sum.norm += b[i] * b[i];
  }
  return {std::sqrt(sum.error), std::sqrt(sum.norm)};
}

/// Runs both passes.
inline void run(const AttnBackend& backend, RandomAttention& r) {
  const auto mask = make_mask_slot(backend, r.slices, r.config.shape);
  backend.forward(*mask, r.forward_args());
  backend.backward(*mask, r.backward_args());
}

/// Expects every output of `r` within `tolerance` (relative L2) of the reference.
inline void expect_close(RandomAttention& r, double tolerance, const std::string& what) {
  const reference::DenseResult expected = reference::dense_attention(r.problem);
  // A gradient that is zero in exact arithmetic (rows that see one key) is left with the rounding of what cancelled:
  // about one part in 2^23 of an element of size 1.
  const double noise = 1e-6 * std::sqrt(static_cast<double>(r.problem.q.size() + r.problem.k.size()));
  const auto check = [&](const char* name, const std::vector<double>& actual, const std::vector<double>& wanted) {
    const Distance d = distance(actual, wanted);
    EXPECT_LE(d.error, tolerance * d.norm + noise) << name << ": " << what;
  };
  check("out", values_of(r.out_view(), r.out), expected.out);
  check("lse", {r.lse.begin(), r.lse.end()}, expected.lse);
  check("max_logits", {r.max_logits.begin(), r.max_logits.end()}, expected.max_logits);
  check("dq", values_of(r.dq_view(), r.dq), expected.dq);
  check("dk", values_of(r.dk_view(), r.dk), expected.dk);
  check("dv", values_of(r.dv_view(), r.dv), expected.dv);
  check("dsink", {r.dsink.begin(), r.dsink.end()}, expected.dsink);
}

}  // namespace tangram::test
