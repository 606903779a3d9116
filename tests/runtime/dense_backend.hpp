// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DenseBackend: attention cell by cell in float64, straight from the contract of AttnBackend. What DistAttention is
// tested with and against: any difference between one rank and many is then the distribution's.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attn/host_backend.hpp"
#include "reference/vector_sums.hpp"
#include "tangram/error.hpp"

namespace tangram::testing {

class DenseBackend final : public HostBackend {
 public:
  AttnCaps caps() const override { return {.name = "dense", .delta = true, .head_masks = true}; }

 protected:
  std::unique_ptr<HostMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape) const override {
    for (const AttnSlice& slice : slices) {
      if (!Range{0, shape.seqlen_q}.contains(slice.q_range) || !Range{0, shape.seqlen_k}.contains(slice.k_range)) {
        throw InvalidArgument("DenseBackend: slice outside the sequences");
      }
    }
    auto prepared = std::make_unique<Prepared>();
    prepared->shape = shape;
    prepared->slices.assign(slices.begin(), slices.end());
    return prepared;
  }

  void forward_of(HostMask& mask, const AttnForwardArgs& args) const override {
    const Prepared& prepared = static_cast<const Prepared&>(mask);
    Rows q(args.q), k(args.k), v(args.v);
    for (int head = 0; head < prepared.shape.num_heads_q; ++head) {
      double max_logit = args.accumulate && args.max_logits != nullptr ? args.max_logits[head] : -kInfinity;
      for (int64_t row = 0; row < prepared.shape.seqlen_q; ++row) {
        forward_row(prepared, args, row, head, q, k, v, max_logit);
      }
      if (args.max_logits != nullptr) args.max_logits[head] = static_cast<float>(max_logit);
    }
  }

  void backward_of(HostMask& mask, const AttnBackwardArgs& args) const override {
    const Prepared& prepared = static_cast<const Prepared&>(mask);
    const AttnShape& shape = prepared.shape;
    // float64 sums, then one rounding; without accumulate the rows that no query sees become zero.
    std::vector<double> dq(count(args.dq)), dk(count(args.dk)), dv(count(args.dv));
    std::vector<char> touched(static_cast<size_t>(shape.seqlen_k), 0);
    Inputs inputs{Rows(args.q), Rows(args.k), Rows(args.v), Rows(args.dout)};
    if (args.dsink != nullptr) std::fill_n(args.dsink, dsink_size(shape, args.sink), 0.0f);
    for (int head = 0; head < shape.num_heads_q; ++head) {
      for (int64_t row = 0; row < shape.seqlen_q; ++row) {
        backward_row(prepared, args, row, head, inputs, dq, dk, dv, touched);
      }
    }
    store(args.dq, dq, args.accumulate_dq, nullptr);
    store(args.dk, dk, args.accumulate_dkv, &touched);
    store(args.dv, dv, args.accumulate_dkv, &touched);
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  struct Prepared final : HostMask {
    AttnShape shape;
    std::vector<AttnSlice> slices;
  };

  static double at(const ConstTensorView& view, int64_t row, int head, int d) {
    const int64_t index = row * view.row_stride + head * view.head_stride + d;
    switch (view.dtype) {
      case DType::kFloat32: return static_cast<const float*>(view.data)[index];
      case DType::kBFloat16: return bfloat16_to_float(static_cast<const uint16_t*>(view.data)[index]);
      case DType::kFloat16: return float16_to_float(static_cast<const uint16_t*>(view.data)[index]);
    }
    return 0;
  }
  static void set(const TensorView& view, int64_t row, int head, int d, double value) {
    const int64_t index = row * view.row_stride + head * view.head_stride + d;
    const float number = static_cast<float>(value);
    switch (view.dtype) {
      case DType::kFloat32: static_cast<float*>(view.data)[index] = number; return;
      case DType::kBFloat16: static_cast<uint16_t*>(view.data)[index] = float_to_bfloat16(number); return;
      case DType::kFloat16: static_cast<uint16_t*>(view.data)[index] = float_to_float16(number); return;
    }
  }
  /// Rows of a tensor in float64, each read when it is first asked for: others may be under way from another rank.
  class Rows {
   public:
    explicit Rows(const ConstTensorView& view)
        : view_(view),
          values_(static_cast<size_t>(view.rows * view.heads * view.dim)),
          is_read_(static_cast<size_t>(view.rows * view.heads)) {}

    /// Rows of `keys` with one head.
    reference::KeyRows operator()(const Range& keys, int head) {
      for (int64_t key = keys.begin; key < keys.end; ++key) (*this)(key, head);
      return {values_.data() + (keys.begin * view_.heads + head) * view_.dim, int64_t{view_.heads} * view_.dim,
              keys.size(), view_.dim};
    }

    const double* operator()(int64_t row, int head) {
      const size_t place = static_cast<size_t>(row * view_.heads + head);
      double* const values = values_.data() + place * static_cast<size_t>(view_.dim);
      if (!is_read_[place]) {
        for (int d = 0; d < view_.dim; ++d) values[d] = at(view_, row, head, d);
        is_read_[place] = 1;
      }
      return values;
    }

   private:
    ConstTensorView view_;
    std::vector<double> values_;
    std::vector<char> is_read_;
  };
  struct Inputs {
    Rows q, k, v, dout;
  };

  static size_t count(const TensorView& view) { return static_cast<size_t>(view.rows * view.heads * view.dim); }
  static size_t index(const TensorView& view, int64_t row, int head) {
    return static_cast<size_t>((row * view.heads + head) * view.dim);
  }
  static void store(const TensorView& view, const std::vector<double>& sums, bool accumulate,
                    const std::vector<char>* touched) {
    for (int64_t row = 0; row < view.rows; ++row) {
      // Rows that the slices do not see are left alone when accumulating: they may be under way to another rank.
      if (accumulate && touched != nullptr && !(*touched)[static_cast<size_t>(row)]) continue;
      for (int head = 0; head < view.heads; ++head) {
        for (int d = 0; d < view.dim; ++d) {
          const double sum = sums[index(view, row, head) + static_cast<size_t>(d)];
          set(view, row, head, d, accumulate ? at(view, row, head, d) + sum : sum);
        }
      }
    }
  }

  static size_t dsink_size(const AttnShape& shape, const Sink& sink) {
    const int64_t sets = sink.layout == SinkLayout::kSh ? 1 : shape.seqlen_q;
    return static_cast<size_t>(sets * sink.seqlen_sink * shape.num_heads_q);
  }
  static size_t sink_index(const AttnShape& shape, const Sink& sink, int64_t row, int64_t s, int head) {
    const int64_t set = sink.layout == SinkLayout::kSh ? 0 : row;
    return static_cast<size_t>((set * sink.seqlen_sink + s) * shape.num_heads_q + head);
  }

  static double scale_of(const AttnShape& shape, const AttnOptions& options) {
    return options.softmax_scale ? *options.softmax_scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  }
  /// Calls `visit` with the keys that a row sees in each slice.
  template <class Visit>
  static void for_each_range(const Prepared& prepared, int64_t row, Visit visit) {
    for (const AttnSlice& slice : prepared.slices) {
      if (!slice.q_range.contains(row)) continue;
      const Range keys = slice.keys_of(row);
      if (keys.begin < keys.end) visit(keys);
    }
  }

  static void forward_row(const Prepared& prepared, const AttnForwardArgs& args, int64_t row, int head, Rows& q,
                          Rows& k, Rows& v, double& max_logit) {
    const AttnShape& shape = prepared.shape;
    const int kv_head = head / (shape.num_heads_q / shape.num_heads_kv);
    const double scale = scale_of(shape, args.options);
    const double softcap = args.options.softcap;
    std::vector<double> scores;
    for_each_range(prepared, row, [&](const Range& keys) {
      const size_t begin = scores.size();
      scores.resize(begin + static_cast<size_t>(keys.size()));
      max_logit = reference::scores_of(q(row, head), k(keys, kv_head), scale, max_logit, scores.data() + begin);
    });
    for (size_t i = 0; i < scores.size() && softcap > 0; ++i) scores[i] = softcap * std::tanh(scores[i] / softcap);
    float& lse = args.lse[row * shape.num_heads_q + head];
    const double previous = args.accumulate ? lse : -kInfinity;
    double largest = previous;
    for (const double score : scores) largest = std::max(largest, score);
    for (int64_t s = 0; s < args.sink.seqlen_sink; ++s) {
      largest = std::max(largest, double{args.sink.data[sink_index(shape, args.sink, row, s, head)]});
    }
    if (largest == -kInfinity) {
      lse = -std::numeric_limits<float>::infinity();
      for (int d = 0; d < shape.head_dim_v; ++d) set(args.out, row, head, d, 0);
      return;
    }
    double total = std::exp(previous - largest);
    std::vector<double> sums(static_cast<size_t>(shape.head_dim_v));
    for (int d = 0; d < shape.head_dim_v && total > 0; ++d) sums[size_t(d)] = total * at(args.out, row, head, d);
    const double* score = scores.data();
    for_each_range(prepared, row, [&](const Range& keys) {
      total = reference::add_weighted(score, largest, v(keys, kv_head), total, sums.data());
      score += keys.size();
    });
    for (int64_t s = 0; s < args.sink.seqlen_sink; ++s) {
      total += std::exp(args.sink.data[sink_index(shape, args.sink, row, s, head)] - largest);
    }
    for (int d = 0; d < shape.head_dim_v; ++d) set(args.out, row, head, d, sums[size_t(d)] / total);
    lse = static_cast<float>(largest + std::log(total));
  }

  static void backward_row(const Prepared& prepared, const AttnBackwardArgs& args, int64_t row, int head,
                           Inputs& inputs, std::vector<double>& dq, std::vector<double>& dk, std::vector<double>& dv,
                           std::vector<char>& touched) {
    const AttnShape& shape = prepared.shape;
    const int kv_head = head / (shape.num_heads_q / shape.num_heads_kv);
    const double scale = scale_of(shape, args.options);
    const double lse = args.lse[row * shape.num_heads_q + head];
    if (lse == -kInfinity) return;
    const double* const q = inputs.q(row, head);
    const double* const dout = inputs.dout(row, head);
    double delta = 0;
    if (args.delta != nullptr) delta = args.delta[row * shape.num_heads_q + head];
    for (int d = 0; args.delta == nullptr && d < shape.head_dim_v; ++d) delta += dout[d] * at(args.out, row, head, d);
    for (int64_t s = 0; args.dsink != nullptr && s < args.sink.seqlen_sink; ++s) {
      const size_t i = sink_index(shape, args.sink, row, s, head);
      args.dsink[i] -= static_cast<float>(std::exp(args.sink.data[i] - lse) * delta);
    }
    const reference::QueryRow query{q, dout, scale, args.options.softcap, lse, delta};
    for_each_range(prepared, row, [&](const Range& keys) {
      std::fill(touched.begin() + keys.begin, touched.begin() + keys.end, char{1});
      reference::add_gradients(query, inputs.k(keys, kv_head), inputs.v(keys, kv_head),
                               dq.data() + index(args.dq, row, head), dk.data() + index(args.dk, keys.begin, kv_head),
                               dv.data() + index(args.dv, keys.begin, kv_head));
    });
  }
};

}  // namespace tangram::testing
