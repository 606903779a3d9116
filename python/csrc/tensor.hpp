// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Tensors of any library as views. Torch tensors are read by DLPack's functions for C, or where torch has none through
// their own methods, which takes a fifth of the time of Python's DLPack and works for tensors that require gradients;
// all others come by DLPack.
#pragma once

#include <nanobind/ndarray.h>

#include <array>
#include <string>

#include "bind.hpp"
#include "tangram/attention.hpp"

namespace tangram::python {

/// An array argument: what it looks like, and what keeps it alive.
struct Array {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  bool on_gpu = false;
  int ndim = 0;
  std::array<int64_t, 3> shape{};
  std::array<int64_t, 3> strides{};  // in elements
  nb::ndarray<nb::ro> owner;         // empty for torch tensors, which the caller holds
};

/// One to three dimensions of float32, bfloat16 or float16 (uint16 stands for the bits of bfloat16, which NumPy lacks).
/// The last one must be contiguous. Throws InvalidArgument naming `function` and `name`.
Array array_of(nb::handle object, const char* function, const char* name);

/// Reads arguments of one call, which must all lie in host memory, or all on the GPU.
class Arguments {
 public:
  Arguments(const char* function, bool on_gpu) : function_(function), on_gpu_(on_gpu) {}

  /// [rows, heads, dim].
  ConstTensorView input(nb::handle object, const char* name);
  TensorView output(nb::handle object, const char* name);
  /// float32, contiguous, or null for None. `shape` may have -1 for any size.
  float* floats(nb::handle object, const char* name, std::initializer_list<int64_t> shape);
  /// [seqlen_sink, num_heads_q] or [seqlen_q, seqlen_sink, num_heads_q]; empty for None.
  Sink sink(nb::handle object, const std::string& layout, int64_t seqlen_q, int num_heads_q);

 private:
  Array checked(nb::handle object, const char* name);

  const char* function_;
  bool on_gpu_;
  std::vector<nb::ndarray<nb::ro>> owners_;
};

}  // namespace tangram::python
