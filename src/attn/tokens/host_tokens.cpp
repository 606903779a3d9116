// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward pass is parallel over queries, the backward pass over K/V heads, so that each gradient has one writer.
#include "attn/tokens/host_tokens.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attn/arguments.hpp"
#include "attn/probability.hpp"
#include "attn/tokens/token_arguments.hpp"
#include "core/require.hpp"

namespace tangram {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double element(const ConstTensorView& view, int64_t index) {
  switch (view.dtype) {
    case DType::kFloat32: return static_cast<const float*>(view.data)[index];
    case DType::kBFloat16: return bfloat16_to_float(static_cast<const uint16_t*>(view.data)[index]);
    case DType::kFloat16: return float16_to_float(static_cast<const uint16_t*>(view.data)[index]);
  }
  return 0;
}

/// One row of one head.
void read_row(const ConstTensorView& view, int64_t row, int head, double* to) {
  const int64_t begin = row * view.row_stride + head * view.head_stride;
  for (int d = 0; d < view.dim; ++d) to[d] = element(view, begin + d);
}

void write_row(const TensorView& view, int64_t row, int head, const double* from) {
  const int64_t begin = row * view.row_stride + head * view.head_stride;
  for (int d = 0; d < view.dim; ++d) {
    const auto rounded = static_cast<float>(from[d]);
    switch (view.dtype) {
      case DType::kFloat32: static_cast<float*>(view.data)[begin + d] = rounded; break;
      case DType::kBFloat16: static_cast<uint16_t*>(view.data)[begin + d] = float_to_bfloat16(rounded); break;
      case DType::kFloat16: static_cast<uint16_t*>(view.data)[begin + d] = float_to_float16(rounded); break;
    }
  }
}

double product(const double* a, const double* b, int n) {
  double sum = 0;
  for (int d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

/// Finds the keys of a list, in the order in which it names them. Throws InvalidArgument for one that is refused.
void find_keys(const char* function, const AttnShape& shape, const TokenIndices& tokens, int64_t row, int kv_head,
               std::vector<int64_t>& keys) {
  const int32_t* list = tokens.indices + (row * shape.num_heads_kv + kv_head) * tokens.topk;
  keys.clear();
  for (int64_t n = 0; n < tokens.topk; ++n) {
    require(-1 <= list[n] && list[n] < shape.seqlen_k,
            "{}: lists must name rows of k, or -1 for none (got key {} for query {}, K/V head {})", function, list[n],
            row, kv_head);
    if (list[n] >= 0) keys.push_back(list[n]);
  }
  std::vector<int64_t> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  require(twice == sorted.end(), "{}: lists must name a key once (got key {} twice for query {}, K/V head {})",
          function, twice == sorted.end() ? 0 : *twice, row, kv_head);
}

/// The keys and values of a list in float64.
struct Gathered {
  std::vector<int64_t> keys;
  std::vector<double> k, v;

  void read(const char* function, const AttnShape& shape, const TokenIndices& tokens, const ConstTensorView& k_view,
            const ConstTensorView& v_view, int64_t row, int kv_head) {
    find_keys(function, shape, tokens, row, kv_head, keys);
    k.resize(keys.size() * static_cast<size_t>(k_view.dim));
    v.resize(keys.size() * static_cast<size_t>(v_view.dim));
    for (size_t n = 0; n < keys.size(); ++n) {
      read_row(k_view, keys[n], kv_head, k_row(n, k_view.dim));
      read_row(v_view, keys[n], kv_head, v_row(n, v_view.dim));
    }
  }
  double* k_row(size_t n, int dim) { return k.data() + n * static_cast<size_t>(dim); }
  double* v_row(size_t n, int dim) { return v.data() + n * static_cast<size_t>(dim); }
};

void forward_row(const AttnShape& shape, const TokenIndices& tokens, const AttnForwardArgs& args, int64_t row) {
  const int dim = shape.head_dim, dim_v = shape.head_dim_v, group = shape.num_heads_q / shape.num_heads_kv;
  const double scale = softmax_scale_of(args.options, shape);
  Gathered gathered;
  std::vector<double> q(static_cast<size_t>(dim)), out(static_cast<size_t>(dim_v)), scores;
  for (int head = 0; head < shape.num_heads_q; ++head) {
    if (head % group == 0) {
      gathered.read("HostTokens::forward", shape, tokens, args.k, args.v, row, head / group);
    }
    const size_t count = gathered.keys.size();
    read_row(args.q, row, head, q.data());
    scores.resize(count);
    double max = -kInf;
    for (size_t n = 0; n < count; ++n) {
      scores[n] = scale * product(q.data(), gathered.k_row(n, dim), dim);
      max = std::max(max, scores[n]);
    }
    double sum = 0;
    std::fill(out.begin(), out.end(), 0);
    for (size_t n = 0; n < count; ++n) {
      const double p = std::exp(scores[n] - max);
      sum += p;
      for (int d = 0; d < dim_v; ++d) out[static_cast<size_t>(d)] += p * gathered.v_row(n, dim_v)[d];
    }
    for (double& x : out) x = count == 0 ? 0 : x / sum;
    write_row(args.out, row, head, out.data());
    args.lse[row * shape.num_heads_q + head] =
        count == 0 ? -static_cast<float>(kInf) : static_cast<float>(max + std::log(sum));
  }
}

/// `check` is called for each row, and throws if the call is to end.
template <class Check>
void backward_kv_head(const AttnShape& shape, const TokenIndices& tokens, const AttnBackwardArgs& args, int kv_head,
                      const Check& check) {
  const int dim = shape.head_dim, dim_v = shape.head_dim_v, group = shape.num_heads_q / shape.num_heads_kv;
  const double scale = softmax_scale_of(args.options, shape);
  const auto rows = [](int64_t count, int of_dim) { return std::vector<double>(static_cast<size_t>(count * of_dim)); };
  std::vector<double> dk = rows(shape.seqlen_k, dim), dv = rows(shape.seqlen_k, dim_v);
  std::vector<double> q = rows(1, dim), dq = rows(1, dim), out = rows(1, dim_v), dout = rows(1, dim_v);
  Gathered gathered;
  std::vector<double> scores;
  for (int64_t row = 0; row < shape.seqlen_q; ++row) {
    check();
    gathered.read("HostTokens::backward", shape, tokens, args.k, args.v, row, kv_head);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      std::fill(dq.begin(), dq.end(), 0);
      read_row(args.q, row, head, q.data());
      read_row(args.out, row, head, out.data());
      read_row(args.dout, row, head, dout.data());
      const float lse = args.lse[row * shape.num_heads_q + head];
      scores.resize(gathered.keys.size());
      for (size_t n = 0; n < scores.size(); ++n) scores[n] = scale * product(q.data(), gathered.k_row(n, dim), dim);
      const RowProbability probability(scores, -kInf, lse);
      const auto dp = [&](size_t n) { return product(dout.data(), gathered.v_row(n, dim_v), dim_v); };
      double delta = 0;
      if (probability.is_whole()) {
        for (size_t n = 0; n < scores.size(); ++n) delta += probability(scores[n]) * dp(n);
      } else {
        delta = product(out.data(), dout.data(), dim_v);
      }
      for (size_t n = 0; n < scores.size(); ++n) {
        const double* k = gathered.k_row(n, dim);
        const double p = probability(scores[n]);
        const double ds = scale * p * (dp(n) - delta);
        double* dk_row = dk.data() + gathered.keys[n] * dim;
        double* dv_row = dv.data() + gathered.keys[n] * dim_v;
        for (int d = 0; d < dim_v; ++d) dv_row[d] += p * dout[static_cast<size_t>(d)];
        for (int d = 0; d < dim; ++d) {
          dk_row[d] += ds * q[static_cast<size_t>(d)];
          dq[static_cast<size_t>(d)] += ds * k[d];
        }
      }
      write_row(args.dq, row, head, dq.data());
    }
  }
  for (int64_t row = 0; row < shape.seqlen_k; ++row) {
    write_row(args.dk, row, kv_head, dk.data() + row * dim);
    write_row(args.dv, row, kv_head, dv.data() + row * dim_v);
  }
}

}  // namespace

std::string HostTokens::refusal(const AttnShape& /*shape*/, int64_t /*topk*/) const { return {}; }

void HostTokens::forward(const AttnShape& shape, const TokenIndices& indices, const AttnForwardArgs& args,
                         void* /*stream*/) const {
  check_tokens("HostTokens::forward", shape, indices, args);
  validate_forward("HostTokens::forward", shape, args);
  pool_.parallel_for(shape.seqlen_q, [&](int64_t row, int) { forward_row(shape, indices, args, row); });
}

void HostTokens::backward(const AttnShape& shape, const TokenIndices& indices, const AttnBackwardArgs& args,
                          void* /*stream*/) const {
  check_tokens("HostTokens::backward", shape, indices, args);
  validate_backward("HostTokens::backward", shape, args);
  pool_.parallel_for(shape.num_heads_kv, [&](int64_t head, int thread_idx) {
    backward_kv_head(shape, indices, args, static_cast<int>(head), [&] { pool_.check(thread_idx); });
  });
}

}  // namespace tangram
