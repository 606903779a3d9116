// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// ProgramDevice: what a program does to memory besides attention and transfers, as functions, so that the runner of
// streams knows no CUDA.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "runtime/runner.hpp"

namespace tangram {

/// `own` becomes the result of its keys, of the rows of `others` (without memory: none) that belong to each row, and of
/// the sink. out = sum_i exp(lse_i - lse) out_i, lse = logsumexp_i(lse_i), sinks without a value. Rows without a
/// partial result get out 0, and lse -inf unless there is a sink. The sink's rows are those of `own`.
struct RowMerge {
  PartialRows own, others;
  RowListsView other_rows;
  SinkRows sinks;
};
/// dsink = -exp(sink - lse) * delta in the sink's layout and stride; SinkLayout::kSh adds up over rows. lse and delta
/// are [rows, heads, 1].
struct SinkGradient {
  ConstTensorView lse, delta;
  SinkRows sinks;
  float* dsink = nullptr;
};
/// to[column] = the largest of from[row * stride + column].
struct ColumnMaxima {
  const float* from = nullptr;
  float* to = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int columns = 0;
};

/// Memory that was written once, by a copy that may still be under way.
class KeptMemory {
 public:
  virtual ~KeptMemory() = default;
  virtual const void* data() const = 0;
  /// Before each call that reads it is put on `stream`.
  virtual void before_call(void* stream) const = 0;
};

/// Operations of a program on memory, on a stream. Sums have a fixed order.
struct ProgramDevice {
  std::function<void(std::span<const RowSum>, void* stream)> sum_rows;
  std::function<void(std::span<const FloatCopy>, void* stream)> copy_floats;
  std::function<void(void* data, int byte, int64_t num_bytes, void* stream)> fill;
  std::function<void(float* values, int64_t count, float factor, void* stream)> scale;
  /// delta[row, head] = sum over dim of out * dout. Where out is zero dout is not looked at.
  std::function<void(const ConstTensorView& out, const ConstTensorView& dout, const TensorView& delta, void* stream)>
      find_delta;
  std::function<void(const RowMerge&, void* stream)> merge;
  std::function<void(const SinkGradient&, void* stream)> find_dsink;
  std::function<void(const ColumnMaxima&, void* stream)> find_maxima;
  /// Whether there is a NaN, once the stream has come so far. False while a graph is captured, which cannot wait.
  std::function<bool(const ConstTensorView&, void* stream)> has_nan;
  /// Memory that lives as long as the returned object, and as earlier calls on a stream. `write` fills `bytes` of host
  /// memory, aligned to 256, that are copied there.
  std::function<std::shared_ptr<const KeptMemory>(size_t bytes, const std::function<void(std::byte*)>& write)> keep;
};

}  // namespace tangram
