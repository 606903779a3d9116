// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Several arrays in one block of device memory: one copy instead of one for each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "cuda/list_memory.hpp"

namespace tangram::cuda {

/// Where an array lies in its PackedArrays.
struct PackedArray {
  size_t offset = 0;
  size_t bytes = 0;
};

/// Arrays that are named first, then uploaded together; they never change after that.
class PackedArrays {
 public:
  /// `values` must be there until upload().
  template <class T>
  PackedArray add(const std::vector<T>& values) {
    return append(values.data(), values.size() * sizeof(T));
  }
  template <class T>
  PackedArray add(const std::vector<T>&&) = delete;
  template <class T>
  PackedArray add_zeros(size_t count) {
    return append(nullptr, count * sizeof(T));
  }

  /// Takes device memory and enqueues a copy (NOTE [list memory]). Throws CudaError.
  void upload();

  /// Before each call that reads the arrays is put on `stream`. Throws CudaError.
  void before_call(cudaStream_t stream) const { block_.before_call(stream); }

  /// The array in device memory, aligned to 256 bytes; null if it is empty. After upload().
  template <class T>
  T* at(const PackedArray& array) const {
    return array.bytes == 0 ? nullptr : reinterpret_cast<T*>(static_cast<char*>(block_.data()) + array.offset);
  }
  size_t device_bytes() const { return block_.bytes(); }

 private:
  struct Part {
    const void* values;  // null: zeros
    PackedArray to;
  };
  PackedArray append(const void* values, size_t bytes);

  std::vector<Part> parts_;
  size_t bytes_ = 0;
  ListBlock block_;
};

}  // namespace tangram::cuda
