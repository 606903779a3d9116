// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

#include "attn/arguments.hpp"
#include "core/require.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/tensor.hpp"

namespace tangram::gpu {

/// Throws InvalidArgument unless `view` has the shape [rows, heads, dim] and lies as TMA can load it. Texts begin with
/// `function` and name the view `name`.
inline void check_view(const char* function, const char* name, const ConstTensorView& view, int64_t rows, int heads,
                       int dim) {
  const bool fits = view.rows == rows && view.heads == heads && view.dim == dim;
  if (!fits) {
    require(fits, "{}: {} must have shape [{}, {}, {}] (got {})", function, name, rows, heads, dim, shape_text(view));
  }
  const auto element = static_cast<int64_t>(size_of(view.dtype));
  require(reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && (rows == 0 || view.data != nullptr),
          "{}: {} must not be null and be aligned to 16 bytes (got {})", function, name, view.data);
  require(view.row_stride * element % 16 == 0 && view.head_stride * element % 16 == 0 && view.row_stride >= 0 &&
              view.head_stride >= 0,
          "{}: strides of {} must be multiples of 16 bytes (got row_stride={}, head_stride={} elements)", function,
          name, view.row_stride, view.head_stride);
}

/// q, k and v of either pass.
template <typename Args>
void check_inputs(const char* function, const AttnShape& shape, const Args& args) {
  check_view(function, "q", args.q, shape.seqlen_q, shape.num_heads_q, shape.head_dim);
  check_view(function, "k", args.k, shape.seqlen_k, shape.num_heads_kv, shape.head_dim);
  check_view(function, "v", args.v, shape.seqlen_k, shape.num_heads_kv, shape.head_dim_v);
}

/// Everything of either pass that the softmax takes besides.
template <typename Args>
void check_softmax(const char* function, const AttnShape& shape, const Args& args) {
  require(shape.seqlen_q == 0 || args.lse != nullptr, "{}: lse must not be null (got null)", function);
  require(args.sink.empty() || args.sink.data != nullptr, "{}: sink.data must not be null (got null)", function);
  validate_options(function, args.options);
  require(args.options.sm_margin >= 0, "{}: sm_margin must not be negative (got {})", function, args.options.sm_margin);
}

}  // namespace tangram::gpu
