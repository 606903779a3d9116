// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Arithmetic on rows of host memory that belongs to no attention backend and to no transport.
#pragma once

#include "tangram/tensor.hpp"

namespace tangram {

/// `target = source`, or `source + addend` when `addend` is given, summed in float32 and rounded once to the dtype of
/// `target`. Equal shapes, any dtypes.
void convert_rows(const ConstTensorView& source, const TensorView& target, const ConstTensorView* addend = nullptr);

/// Fills every element with `value`.
void fill_rows(const TensorView& view, float value);

bool has_nan(const ConstTensorView& view);

}  // namespace tangram
