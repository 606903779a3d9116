// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/host/merge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/larger.hpp"
#include "core/require.hpp"
#include "runtime/rows.hpp"

namespace tangram {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

float* row_at(const TensorView& view, int64_t row, int head) {
  return static_cast<float*>(view.data) + row * view.row_stride + head * view.head_stride;
}
float value_at(const ConstTensorView& view, int64_t row, int head) {
  return static_cast<const float*>(view.data)[row * view.row_stride + head * view.head_stride];
}

int64_t sink_index(const SinkRows& of, int64_t row, int64_t s, int head) {
  const int64_t set = of.sink.layout == SinkLayout::kSh ? 0 : row;
  return (set * of.sink.seqlen_sink + s) * of.stride + head;
}

/// exp(lse - largest), where largest is not -inf.
double weight_of(double lse, double largest) { return lse == -kInfinity ? 0 : std::exp(lse - largest); }

}  // namespace

void merge_partials(const PartialRows& own, const PartialRows* others, const SinkRows& sinks) {
  const Sink& sink = sinks.sink;
  TANGRAM_ASSERT(own.out.dtype == DType::kFloat32 && (others == nullptr || others->out.dtype == DType::kFloat32));
  if (others == nullptr && sink.empty()) return;
  for (int64_t row = 0; row < own.out.rows; ++row) {
    for (int head = 0; head < own.out.heads; ++head) {
      float& lse = *row_at(own.lse, row, head);
      const double other_lse = others == nullptr ? -kInfinity : *row_at(others->lse, row, head);
      const auto sink_value = [&](int64_t s) -> double { return sink.data[sink_index(sinks, row, s, head)]; };
      double largest = larger<double>(lse, other_lse);
      for (int64_t s = 0; s < sink.seqlen_sink; ++s) largest = larger<double>(largest, sink_value(s));
      if (largest == -kInfinity) continue;  // out is 0 and stays so
      const double own_weight = weight_of(lse, largest), other_weight = weight_of(other_lse, largest);
      double total = own_weight + other_weight;
      for (int64_t s = 0; s < sink.seqlen_sink; ++s) total += weight_of(sink_value(s), largest);
      float* out = row_at(own.out, row, head);
      const float* other = other_weight == 0 ? nullptr : row_at(others->out, row, head);
      for (int d = 0; d < own.out.dim; ++d) {
        const double sum = own_weight * out[d] + (other == nullptr ? 0 : other_weight * other[d]);
        out[d] = static_cast<float>(sum / total);
      }
      lse = static_cast<float>(largest + std::log(total));
    }
  }
}

void compute_delta(const ConstTensorView& out, const ConstTensorView& dout, const TensorView& delta) {
  HostTensor out_row(DType::kFloat32, 1, out.heads, out.dim), dout_row(DType::kFloat32, 1, out.heads, out.dim);
  for (int64_t row = 0; row < out.rows; ++row) {
    convert_rows(slice_rows(out, {row, row + 1}), out_row);
    convert_rows(slice_rows(dout, {row, row + 1}), dout_row);
    for (int head = 0; head < out.heads; ++head) {
      const float* a = out_row.data<float>() + head * out.dim;
      const float* b = dout_row.data<float>() + head * out.dim;
      double sum = 0;
      for (int d = 0; d < out.dim; ++d) {
        if (a[d] != 0) sum += double{a[d]} * b[d];
      }
      *row_at(delta, row, head) = static_cast<float>(sum);
    }
  }
}

void compute_dsink(const SinkRows& sinks, const ConstTensorView& lse, const ConstTensorView& delta, float* dsink) {
  const Sink& sink = sinks.sink;
  const bool shared = sink.layout == SinkLayout::kSh;
  std::vector<double> sums(shared ? static_cast<size_t>(sink.seqlen_sink * lse.heads) : 0);
  for (int64_t row = 0; row < lse.rows; ++row) {
    for (int64_t s = 0; s < sink.seqlen_sink; ++s) {
      for (int head = 0; head < lse.heads; ++head) {
        const int64_t at = sink_index(sinks, row, s, head);
        const double of_row = value_at(lse, row, head);
        const double p = of_row == -kInfinity ? 0 : std::exp(sink.data[at] - of_row);
        const double gradient = p == 0 ? 0 : -p * value_at(delta, row, head);
        if (shared) {
          sums[static_cast<size_t>(s * lse.heads + head)] += gradient;
        } else {
          dsink[at] = static_cast<float>(gradient);
        }
      }
    }
  }
  for (int64_t s = 0; shared && s < sink.seqlen_sink; ++s) {
    for (int head = 0; head < lse.heads; ++head) {
      dsink[sink_index(sinks, 0, s, head)] = static_cast<float>(sums[static_cast<size_t>(s * lse.heads + head)]);
    }
  }
}

}  // namespace tangram
