// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Work of an owner on rows that several ranks computed: partial results combined by lse, the sink, its gradient, and
// delta, which moves instead of out.
#pragma once

#include "runtime/runner.hpp"

namespace tangram {

/// `own` becomes the result of its keys, of those of `others` (null: none), and of the sink. out = sum_i exp(lse_i -
/// lse) out_i, lse = logsumexp_i(lse_i), sinks without a value. Rows without a partial result get out 0, and lse -inf
/// unless there is a sink. In float64, own rows first, then others, then the sink in order. The sink's rows are those
/// of `own`.
void merge_partials(const PartialRows& own, const PartialRows* others, const SinkRows& sink);

/// delta[row, head] = sum over dim of out * dout, [rows, heads, 1] float32. Where out is zero dout is not looked at: it
/// may be anything in rows that see nothing.
void compute_delta(const ConstTensorView& out, const ConstTensorView& dout, const TensorView& delta);

/// dsink = -exp(sink - lse) * delta in the sink's layout and stride; kSh adds up over rows, in float64 and in row
/// order. `lse` and `delta` are [rows, heads, 1].
void compute_dsink(const SinkRows& sink, const ConstTensorView& lse, const ConstTensorView& delta, float* dsink);

}  // namespace tangram
