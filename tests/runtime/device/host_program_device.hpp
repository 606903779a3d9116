// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What programs do to memory, done to the host's: with HostMemoryDevice what runs on GPUs is tested without one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/device/device_runner.hpp"
#include "runtime/host/merge.hpp"
#include "runtime/rows.hpp"

namespace tangram::testing {

/// The rows that belong to row `row`: of lists, or itself.
inline std::vector<int64_t> rows_of(const RowListsView& lists, int64_t row) {
  if (lists.begins == nullptr) return {row};
  return {lists.rows + lists.begins[row], lists.rows + lists.begins[row + 1]};
}

/// The sum of rows of `tensor`, in order, from zero on: one row of float32.
inline HostTensor sum_of_rows(const ConstTensorView& tensor, const std::vector<int64_t>& rows) {
  HostTensor sum(DType::kFloat32, 1, tensor.heads, tensor.dim);
  sum.fill(0);
  for (const int64_t row : rows) {
    const ConstTensorView next = slice_rows(tensor, {row, row + 1});
    convert_rows(sum, sum, &next);
  }
  return sum;
}

inline void sum_rows_on_host(const RowSum& sum) {
  const ConstTensorView& like = sum.source.data != nullptr ? sum.source : sum.addend;
  if (like.data == nullptr) return fill_rows(sum.result, 0);
  if (sum.addend_rows.begins == nullptr && sum.source.data != nullptr) {
    return convert_rows(sum.source, sum.result, sum.addend.data == nullptr ? nullptr : &sum.addend);
  }
  for (int64_t row = 0; row < sum.result.rows; ++row) {
    const HostTensor added = sum_of_rows(sum.addend, rows_of(sum.addend_rows, row));
    const TensorView result = slice_rows(sum.result, {row, row + 1});
    if (sum.source.data == nullptr) {
      convert_rows(added, result);
    } else {
      const ConstTensorView addend = added;
      convert_rows(slice_rows(sum.source, {row, row + 1}), result, &addend);
    }
  }
}

/// One part after the other, the last one with the sink.
inline void merge_on_host(const RowMerge& merge) {
  const bool has_others = merge.others.out.data != nullptr;
  if (!has_others || merge.other_rows.begins == nullptr) {
    return merge_partials(merge.own, has_others ? &merge.others : nullptr, merge.sinks);
  }
  const auto row_of = [](const PartialRows& of, int64_t at) {
    return PartialRows{slice_rows(of.out, {at, at + 1}), slice_rows(of.lse, {at, at + 1})};
  };
  for (int64_t row = 0; row < merge.own.out.rows; ++row) {
    SinkRows sinks = merge.sinks;
    if (sinks.sink.layout == SinkLayout::kSsh) sinks.sink.data += row * sinks.sink.seqlen_sink * sinks.stride;
    const std::vector<int64_t> others = rows_of(merge.other_rows, row);
    if (others.empty()) merge_partials(row_of(merge.own, row), nullptr, sinks);
    for (size_t i = 0; i < others.size(); ++i) {
      const PartialRows part = row_of(merge.others, others[i]);
      merge_partials(row_of(merge.own, row), &part, i + 1 == others.size() ? sinks : SinkRows{});
    }
  }
}

inline ProgramDevice host_program_device() {
  ProgramDevice device;
  device.sum_rows = [](std::span<const RowSum> sums, void*) {
    for (const RowSum& sum : sums) sum_rows_on_host(sum);
  };
  device.copy_floats = [](std::span<const FloatCopy> copies, void*) {
    for (const FloatCopy& copy : copies) {
      for (int64_t row = 0; row < copy.rows; ++row) {
        for (int column = 0; column < copy.columns; ++column) {
          copy.to[row * copy.to_stride + column] =
              copy.from == nullptr ? copy.value : copy.from[row * copy.from_stride + column];
        }
      }
    }
  };
  device.fill = [](void* data, int byte, int64_t num_bytes, void*) {
    std::memset(data, byte, static_cast<size_t>(num_bytes));
  };
  device.has_nan = [](const ConstTensorView& view, void*) { return has_nan(view); };
  device.scale = [](float* values, int64_t count, float factor, void*) {
    for (int64_t i = 0; i < count; ++i) values[i] *= factor;
  };
  device.find_delta = [](const ConstTensorView& out, const ConstTensorView& dout, const TensorView& delta, void*) {
    compute_delta(out, dout, delta);
  };
  device.merge = [](const RowMerge& merge, void*) { merge_on_host(merge); };
  device.find_dsink = [](const SinkGradient& of, void*) { compute_dsink(of.sinks, of.lse, of.delta, of.dsink); };
  device.find_maxima = [](const ColumnMaxima& of, void*) {
    for (int column = 0; column < of.columns; ++column) {
      of.to[column] = -std::numeric_limits<float>::infinity();
      for (int64_t row = 0; row < of.rows; ++row) {
        of.to[column] = std::max(of.to[column], of.from[row * of.stride + column]);
      }
    }
  };
  device.keep = [](size_t bytes, const std::function<void(std::byte*)>& write) {
    struct Kept final : KeptMemory {
      std::vector<std::byte> copy;
      const void* data() const override { return copy.data(); }
      void before_call(void*) const override {}
    };
    const auto kept = std::make_shared<Kept>();
    kept->copy.resize(bytes);
    write(kept->copy.data());
    return kept;
  };
  return device;
}

}  // namespace tangram::testing
