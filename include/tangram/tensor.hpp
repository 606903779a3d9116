// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Views of token tensors `[rows, heads, dim]`, and a host tensor that owns its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tangram/dtype.hpp"
#include "tangram/range.hpp"

namespace tangram {

/// A view of `[rows, heads, dim]` in host or device memory. `dim` is contiguous; strides count elements.
/// A view does not own and does not check; functions that take one say what they require.
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int heads = 0;
  int dim = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  bool empty() const { return rows == 0 || heads == 0 || dim == 0; }
  bool contiguous() const { return head_stride == dim && row_stride == int64_t{heads} * dim; }
  /// Bytes of one row when rows are contiguous: what one row costs to move.
  int64_t row_bytes() const { return int64_t{heads} * dim * static_cast<int64_t>(size_of(dtype)); }
};

using ConstTensorView = BasicTensorView<const void*>;

struct TensorView : BasicTensorView<void*> {
  operator ConstTensorView() const { return {data, dtype, rows, heads, dim, row_stride, head_stride}; }
};

/// The rows `rows` of a view. Rows must lie inside it.
TensorView slice_rows(const TensorView& view, Range rows);
ConstTensorView slice_rows(const ConstTensorView& view, Range rows);

/// `bfloat16[128, 8, 64]`, for messages.
std::string shape_text(const ConstTensorView& view);

/// A contiguous `[rows, heads, dim]` tensor in host memory, 64-byte aligned, move-only. Contents start undefined.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, int64_t rows, int heads, int dim);  ///< throws InvalidArgument, or std::bad_alloc

  DType dtype() const { return view_.dtype; }
  int64_t rows() const { return view_.rows; }
  int heads() const { return view_.heads; }
  int dim() const { return view_.dim; }
  int64_t size() const { return view_.rows * view_.heads * view_.dim; }
  int64_t bytes() const { return size() * static_cast<int64_t>(size_of(view_.dtype)); }

  TensorView view() { return view_; }
  ConstTensorView view() const { return view_; }
  operator TensorView() { return view_; }
  operator ConstTensorView() const { return view_; }

  /// The elements as T, which must have the size of the dtype.
  template <class T>
  T* data() {
    return static_cast<T*>(view_.data);
  }
  template <class T>
  const T* data() const {
    return static_cast<const T*>(view_.data);
  }

  /// Every element becomes `value`, converted to the dtype.
  void fill(float value);
  /// Reads and writes one element through float32.
  float at(int64_t row, int head, int d) const;
  void set(int64_t row, int head, int d, float value);
  /// A deep copy, and one converted to another dtype (round to nearest even).
  HostTensor clone() const;
  HostTensor to(DType dtype) const;

 private:
  struct Free {
    size_t num_bytes;
    void operator()(void* pointer) const noexcept;
  };
  std::unique_ptr<void, Free> memory_;
  TensorView view_;
};

}  // namespace tangram
