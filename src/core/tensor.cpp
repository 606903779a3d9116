// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/host_pool.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

template <class View>
View sliced(const View& view, Range rows, const char* base) {
  require(Range{0, view.rows}.contains(rows) && rows.begin <= rows.end,
          "slice_rows: rows must lie in [0, {}) (got [{}, {}))", view.rows, rows.begin, rows.end);
  View result = view;
  result.data = const_cast<char*>(base) + rows.begin * view.row_stride * static_cast<int64_t>(size_of(view.dtype));
  result.rows = rows.size();
  return result;
}

}  // namespace

TensorView slice_rows(const TensorView& view, Range rows) {
  return sliced(view, rows, static_cast<const char*>(view.data));
}

ConstTensorView slice_rows(const ConstTensorView& view, Range rows) {
  return sliced(view, rows, static_cast<const char*>(view.data));
}

std::string shape_text(const ConstTensorView& view) {
  return fmt::format("{}[{}, {}, {}]", to_string(view.dtype), view.rows, view.heads, view.dim);
}

void HostTensor::Free::operator()(void* pointer) const noexcept { release_host(pointer, num_bytes); }

HostTensor::HostTensor(DType dtype, int64_t rows, int heads, int dim) {
  require(rows >= 0 && heads >= 0 && dim >= 0, "HostTensor: sizes must not be negative (got rows={}, heads={}, dim={})",
          rows, heads, dim);
  // More bytes than numbers for them is more than there is memory.
  constexpr int64_t kMaxBytes = int64_t{1} << 62;
  const int64_t row_elements = int64_t{heads} * dim;
  if (row_elements > 0 && rows > kMaxBytes / static_cast<int64_t>(size_of(dtype)) / row_elements) {
    throw OutOfMemory(fmt::format("not enough memory for a tensor {}[{}, {}, {}]: more bytes than can be counted",
                                  to_string(dtype), rows, heads, dim));
  }
  view_.dtype = dtype;
  view_.rows = rows;
  view_.heads = heads;
  view_.dim = dim;
  view_.row_stride = int64_t{heads} * dim;
  view_.head_stride = dim;
  const auto num_bytes = static_cast<size_t>(bytes());
  try {
    memory_ = std::unique_ptr<void, Free>(allocate_host(num_bytes), Free{num_bytes});
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(fmt::format("not enough memory for a tensor {}: {} bytes", shape_text(view_), num_bytes));
  }
  view_.data = memory_.get();
}

float HostTensor::at(int64_t row, int head, int d) const {
  const int64_t index = row * view_.row_stride + head * view_.head_stride + d;
  switch (view_.dtype) {
    case DType::kFloat32: return data<float>()[index];
    case DType::kBFloat16: return bfloat16_to_float(data<uint16_t>()[index]);
    case DType::kFloat16: return float16_to_float(data<uint16_t>()[index]);
  }
  return 0;
}

void HostTensor::set(int64_t row, int head, int d, float value) {
  const int64_t index = row * view_.row_stride + head * view_.head_stride + d;
  switch (view_.dtype) {
    case DType::kFloat32: data<float>()[index] = value; return;
    case DType::kBFloat16: data<uint16_t>()[index] = float_to_bfloat16(value); return;
    case DType::kFloat16: data<uint16_t>()[index] = float_to_float16(value); return;
  }
}

void HostTensor::fill(float value) {
  if (view_.dtype == DType::kFloat32) {
    std::fill_n(data<float>(), size(), value);
    return;
  }
  const uint16_t bits = view_.dtype == DType::kBFloat16 ? float_to_bfloat16(value) : float_to_float16(value);
  std::fill_n(data<uint16_t>(), size(), bits);
}

HostTensor HostTensor::clone() const {
  HostTensor copy(view_.dtype, view_.rows, view_.heads, view_.dim);
  if (bytes() > 0) std::memcpy(copy.view_.data, view_.data, static_cast<size_t>(bytes()));
  return copy;
}

HostTensor HostTensor::to(DType dtype) const {
  if (dtype == view_.dtype) return clone();
  HostTensor copy(dtype, view_.rows, view_.heads, view_.dim);
  for (int64_t row = 0; row < view_.rows; ++row) {
    for (int head = 0; head < view_.heads; ++head) {
      for (int d = 0; d < view_.dim; ++d) copy.set(row, head, d, at(row, head, d));
    }
  }
  return copy;
}

}  // namespace tangram
