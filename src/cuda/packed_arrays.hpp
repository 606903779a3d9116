// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Several arrays in one block of device memory: one allocation and one copy instead of one for each.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/device_buffer.hpp"

namespace tangram::cuda {

/// Where an array lies in its PackedArrays.
struct PackedArray {
  size_t offset = 0;
  size_t bytes = 0;
};

/// Filled on the host, then uploaded once; the arrays never change after that.
class PackedArrays {
 public:
  /// Appends a copy of `values`. Before upload().
  template <class T>
  PackedArray add(const std::vector<T>& values) {
    return append(values.data(), values.size() * sizeof(T));
  }

  /// Allocates and copies; the copy has ended on return, as cuda::upload's. Throws CudaError.
  void upload();

  /// The array in device memory, aligned to 256 bytes; null if it is empty. After upload().
  template <class T>
  T* at(const PackedArray& array) const {
    return array.bytes == 0 ? nullptr : reinterpret_cast<T*>(device_.as<char>() + array.offset);
  }
  size_t device_bytes() const { return device_.bytes(); }

 private:
  PackedArray append(const void* values, size_t bytes);

  std::vector<char> host_;
  DeviceBuffer device_;
};

}  // namespace tangram::cuda
