// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

#include "core/require.hpp"
#include "tangram/tensor.hpp"

namespace tangram::sm90 {

/// Throws InvalidArgument unless `view` has the shape [rows, heads, dim] and lies as TMA can load it. Texts begin with
/// `function` and name the view `name`.
inline void check_view(const char* function, const char* name, const ConstTensorView& view, int64_t rows, int heads,
                       int dim) {
  require(view.rows == rows && view.heads == heads && view.dim == dim, "{}: {} must have shape [{}, {}, {}] (got {})",
          function, name, rows, heads, dim, shape_text(view));
  const auto element = static_cast<int64_t>(size_of(view.dtype));
  require(reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && (rows == 0 || view.data != nullptr),
          "{}: {} must not be null and be aligned to 16 bytes (got {})", function, name, view.data);
  require(view.row_stride * element % 16 == 0 && view.head_stride * element % 16 == 0 && view.row_stride >= 0 &&
              view.head_stride >= 0,
          "{}: strides of {} must be multiples of 16 bytes (got row_stride={}, head_stride={} elements)", function,
          name, view.row_stride, view.head_stride);
}

}  // namespace tangram::sm90
