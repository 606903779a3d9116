// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Arrays that share one block of memory for the time of a call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tangram::cuda {

/// Alignment in bytes of blocks that calls get, and of arrays in them.
inline constexpr size_t kScratchAlignment = 256;

/// Places one array behind the other. The same code lays out a block and, without one, finds out how many bytes it must
/// have.
class ScratchLayout {
 public:
  /// `base` is aligned to kScratchAlignment, or null: then all arrays are null, and only bytes() tells something.
  explicit ScratchLayout(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  /// Room for `count` elements.
  template <class T>
  T* take(size_t count) {
    const size_t offset = bytes_;
    bytes_ += (count * sizeof(T) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }
  /// Bytes of all parts added so far.
  size_t bytes() const { return bytes_; }

 private:
  char* base_;
  size_t bytes_ = 0;
};

}  // namespace tangram::cuda
