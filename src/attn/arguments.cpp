// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/arguments.hpp"

#include <cmath>
#include <limits>

#include "core/require.hpp"
#include "tangram/mask.hpp"

namespace tangram {

namespace {

void validate_shape(const char* function, const AttnShape& shape) {
  require(shape.seqlen_q >= 0 && shape.seqlen_k >= 0,
          "{}: sequence lengths must not be negative (got seqlen_q={}, seqlen_k={})", function, shape.seqlen_q,
          shape.seqlen_k);
  require(shape.num_heads_q > 0 && shape.num_heads_kv > 0,
          "{}: heads must be positive (got num_heads_q={}, num_heads_kv={})", function, shape.num_heads_q,
          shape.num_heads_kv);
  require(shape.num_heads_q % shape.num_heads_kv == 0,
          "{}: num_heads_q must be a multiple of num_heads_kv (got num_heads_q={}, num_heads_kv={})", function,
          shape.num_heads_q, shape.num_heads_kv);
  require(shape.head_dim > 0 && shape.head_dim_v > 0, "{}: head dims must be positive (got head_dim={}, head_dim_v={})",
          function, shape.head_dim, shape.head_dim_v);
}

}  // namespace

void validate_tensor(const char* function, const ConstTensorView& view, const ExpectedTensor& expected) {
  const bool fits = view.rows == expected.rows && view.heads == expected.heads && view.dim == expected.dim;
  if (!fits) {
    require(fits, "{}: {} must be [{}, {}, {}] (got {})", function, expected.name, expected.rows, expected.heads,
            expected.dim, shape_text(view));
  }
  if (view.empty()) return;
  require(view.data != nullptr, "{}: {} must have memory (got data=null)", function, expected.name);
  require((view.heads == 1 || view.head_stride >= view.dim) && (view.rows == 1 || view.row_stride >= view.dim),
          "{}: {} must have strides of at least its dim (got row_stride={}, head_stride={}, dim={})", function,
          expected.name, view.row_stride, view.head_stride, view.dim);
}

void validate_options(const char* function, const AttnOptions& options) {
  if (options.softmax_scale) {
    require(std::isfinite(*options.softmax_scale) && *options.softmax_scale > 0,
            "{}: softmax_scale must be finite and positive (got {})", function, *options.softmax_scale);
  }
  require(std::isfinite(options.softcap) && options.softcap >= 0,
          "{}: softcap must be finite and not negative (got {})", function, options.softcap);
}

void validate_sink(const char* function, const Sink& sink) {
  require(sink.seqlen_sink >= 0, "{}: seqlen_sink must not be negative (got {})", function, sink.seqlen_sink);
  require(sink.layout == SinkLayout::kSh || sink.layout == SinkLayout::kSsh,
          "{}: sink layout must be sh (0) or ssh (1) (got {})", function, static_cast<int>(sink.layout));
  require(sink.empty() || sink.data != nullptr, "{}: sink must have memory (got data=null, seqlen_sink={})", function,
          sink.seqlen_sink);
}

void validate_mask(const char* function, std::span<const AttnSlice> slices, const AttnShape& shape) {
  validate_shape(function, shape);
  for (size_t i = 0; i < slices.size(); ++i) {
    const Range& q = slices[i].q_range;
    const Range& k = slices[i].k_range;
    require(0 <= q.begin && q.begin <= q.end && q.end <= shape.seqlen_q,
            "{}: slices[{}].q_range must lie in [0, {}) (got [{}, {}))", function, i, shape.seqlen_q, q.begin, q.end);
    require(0 <= k.begin && k.begin <= k.end && k.end <= shape.seqlen_k,
            "{}: slices[{}].k_range must lie in [0, {}) (got [{}, {}))", function, i, shape.seqlen_k, k.begin, k.end);
  }
  const OverlapPair pair = find_overlap(slices);
  require(pair.first < 0, "{}: slices must not cover a cell twice (got slices[{}] = {} and slices[{}] = {})", function,
          pair.first, pair.first < 0 ? std::string() : to_string(slices[static_cast<size_t>(pair.first)]), pair.second,
          pair.first < 0 ? std::string() : to_string(slices[static_cast<size_t>(pair.second)]));
}

namespace {

void validate_input(const char* function, DType dtype, const ConstTensorView& view, const ExpectedTensor& expected) {
  validate_tensor(function, view, expected);
  require(view.dtype == dtype, "{}: {} must be {} as prepared (got {})", function, expected.name, to_string(dtype),
          to_string(view.dtype));
}

void validate_output(const char* function, DType dtype, bool accumulate, const ConstTensorView& view,
                     const ExpectedTensor& expected) {
  validate_tensor(function, view, expected);
  require(view.dtype == DType::kFloat32 || (view.dtype == dtype && !accumulate), "{}: {} must be float32{} (got {})",
          function, expected.name,
          accumulate                 ? " to accumulate"
          : dtype == DType::kFloat32 ? ""
                                     : " or the dtype of q",
          to_string(view.dtype));
}

// What forward and backward share.
template <class Args>
void validate_common(const char* function, const AttnShape& shape, const Args& args) {
  validate_options(function, args.options);
  validate_sink(function, args.sink);
  validate_input(function, shape.dtype, args.q, {"q", shape.seqlen_q, shape.num_heads_q, shape.head_dim});
  validate_input(function, shape.dtype, args.k, {"k", shape.seqlen_k, shape.num_heads_kv, shape.head_dim});
  validate_input(function, shape.dtype, args.v, {"v", shape.seqlen_k, shape.num_heads_kv, shape.head_dim_v});
  require(args.lse != nullptr || shape.seqlen_q == 0, "{}: lse must have memory (got null)", function);
}

}  // namespace

void validate_forward(const char* function, const AttnShape& shape, const AttnForwardArgs& args) {
  const AttnShape& s = shape;
  validate_common(function, s, args);
  validate_output(function, s.dtype, args.accumulate, args.out, {"out", s.seqlen_q, s.num_heads_q, s.head_dim_v});
}

void validate_backward(const char* function, const AttnShape& shape, const AttnBackwardArgs& args) {
  const AttnShape& s = shape;
  validate_common(function, s, args);
  const ExpectedTensor out{"out", s.seqlen_q, s.num_heads_q, s.head_dim_v};
  const ExpectedTensor dout{"dout", s.seqlen_q, s.num_heads_q, s.head_dim_v};
  if (args.delta == nullptr) validate_output(function, s.dtype, false, args.out, out);
  validate_output(function, s.dtype, false, args.dout, dout);
  validate_output(function, s.dtype, args.accumulate_dq, args.dq, {"dq", s.seqlen_q, s.num_heads_q, s.head_dim});
  validate_output(function, s.dtype, args.accumulate_dkv, args.dk, {"dk", s.seqlen_k, s.num_heads_kv, s.head_dim});
  validate_output(function, s.dtype, args.accumulate_dkv, args.dv, {"dv", s.seqlen_k, s.num_heads_kv, s.head_dim_v});
  require(args.dsink == nullptr || !args.sink.empty(), "{}: dsink needs the sink (got seqlen_sink=0)", function);
}

float softmax_scale_of(const AttnOptions& options, const AttnShape& shape) {
  return options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(shape.head_dim)));
}

double sink_lse(const Sink& sink, int num_heads_q, int64_t row, int head) {
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t s = 0; s < sink.seqlen_sink; ++s) {
    const double value = sink.data[sink_offset(sink, num_heads_q, row, s, head)];
    if (std::isnan(value)) return value;  // std::max would drop it
    max = std::max(max, value);
  }
  if (std::isinf(max) && max < 0) return max;
  double sum = 0;
  for (int64_t s = 0; s < sink.seqlen_sink; ++s) {
    sum += std::exp(sink.data[sink_offset(sink, num_heads_q, row, s, head)] - max);
  }
  return max + std::log(sum);
}

}  // namespace tangram
