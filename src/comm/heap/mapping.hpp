// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Mapping: device memory of CUDA's virtual memory management, which another process can map too.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <span>

#include "comm/socket/link.hpp"

namespace tangram::comm {

/// Memory of one GPU, mapped into this process and accessible from some GPUs. The memory itself lives as long as any
/// process maps it.
class Mapping {
 public:
  /// New memory on `device`, zeroed, at least `bytes` of it, accessible from `devices`. Throws CudaError; NotAvailable
  /// when there is not enough.
  static Mapping create(size_t bytes, int device, std::span<const int> devices);
  /// The memory of another process, of which `fd` is a shareable handle and `bytes` the size.
  static Mapping import(int fd, size_t bytes, std::span<const int> devices);

  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// A shareable handle for `import` in another process.
  UniqueFd share() const;
  char* data() const { return reinterpret_cast<char*>(address_); }
  size_t bytes() const { return bytes_; }

 private:
  void map(std::span<const int> devices);

  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  size_t bytes_ = 0;
  bool has_handle_ = false;
  bool is_mapped_ = false;
};

}  // namespace tangram::comm
