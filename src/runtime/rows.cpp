// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/rows.hpp"

#include <cmath>
#include <vector>

#include "core/require.hpp"

namespace tangram {

namespace {

template <class View>
auto* address(const View& view, int64_t row, int head) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, char, const char>;
  return static_cast<Byte*>(view.data) +
         (row * view.row_stride + head * view.head_stride) * static_cast<int64_t>(size_of(view.dtype));
}

void load(const ConstTensorView& view, int64_t row, int head, float* values) {
  const char* bytes = address(view, row, head);
  if (view.dtype == DType::kFloat32) {
    const float* elements = reinterpret_cast<const float*>(bytes);
    for (int d = 0; d < view.dim; ++d) values[d] = elements[d];
    return;
  }
  const uint16_t* elements = reinterpret_cast<const uint16_t*>(bytes);
  const auto convert = view.dtype == DType::kBFloat16 ? bfloat16_to_float : float16_to_float;
  for (int d = 0; d < view.dim; ++d) values[d] = convert(elements[d]);
}

void store(const TensorView& view, int64_t row, int head, const float* values) {
  char* bytes = address(view, row, head);
  if (view.dtype == DType::kFloat32) {
    float* elements = reinterpret_cast<float*>(bytes);
    for (int d = 0; d < view.dim; ++d) elements[d] = values[d];
    return;
  }
  uint16_t* elements = reinterpret_cast<uint16_t*>(bytes);
  const auto convert = view.dtype == DType::kBFloat16 ? float_to_bfloat16 : float_to_float16;
  for (int d = 0; d < view.dim; ++d) elements[d] = convert(values[d]);
}

}  // namespace

void convert_rows(const ConstTensorView& source, const TensorView& target, const ConstTensorView* addend) {
  TANGRAM_ASSERT(source.rows == target.rows && source.heads == target.heads && source.dim == target.dim);
  std::vector<float> values(static_cast<size_t>(source.dim)), more(static_cast<size_t>(source.dim));
  for (int64_t row = 0; row < source.rows; ++row) {
    for (int head = 0; head < source.heads; ++head) {
      load(source, row, head, values.data());
      if (addend != nullptr) {
        load(*addend, row, head, more.data());
        for (size_t d = 0; d < values.size(); ++d) values[d] += more[d];
      }
      store(target, row, head, values.data());
    }
  }
}

void fill_rows(const TensorView& view, float value) {
  const std::vector<float> values(static_cast<size_t>(view.dim), value);
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int head = 0; head < view.heads; ++head) store(view, row, head, values.data());
  }
}

bool has_nan(const ConstTensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.dim));
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int head = 0; head < view.heads; ++head) {
      load(view, row, head, values.data());
      for (const float value : values) {
        if (std::isnan(value)) return true;
      }
    }
  }
  return false;
}

}  // namespace tangram
