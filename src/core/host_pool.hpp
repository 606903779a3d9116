// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Large buffers in host memory, kept for the next pass. Otherwise the C allocator would serve them from its heap once
// the first has been freed, between longer-lived data such as plans. (Its threshold for mapping grows to the size of
// freed blocks, up to 32 MiB.) With a new mask at each step the holes add up to three times the memory in use. Its
// settings (mallopt) are no way out: they hold for the whole process, which belongs to the application.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "tangram/host_memory.hpp"

namespace tangram {

/// Mapped blocks of memory. Released blocks are kept up to a bound; the blocks unused for longest are unmapped first.
/// Thread-safe.
///
/// With a new mask at each step buffers differ by a few rows each time. So sizes are rounded up to one of four for each
/// power of two. What is never written has no memory behind it.
class HostPool {
 public:
  /// Smaller requests are better served by the C allocator.
  static constexpr size_t kMinBytes = size_t{64} << 10;
  /// After so many releases an unused block is returned to the system: passes change. A model of 32 layers gives back
  /// some 500 buffers in a step.
  static constexpr uint64_t kMaxAge = 1024;
  static constexpr size_t kAlignment = 4096;

  explicit HostPool(int64_t max_kept_bytes) : max_kept_bytes_(max_kept_bytes) {}
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  /// The pool of this process.
  static HostPool& of_process();

  /// `bytes` of memory aligned to kAlignment, with any content. Throws std::bad_alloc.
  void* allocate(size_t bytes);
  /// `bytes` as they were asked for.
  void release(void* data, size_t bytes) noexcept;

  HostMemoryUse use() const;
  void set_max_kept_bytes(int64_t max_kept_bytes);

  /// Bytes of the block that serves a request.
  static size_t block_bytes(size_t bytes);

 private:
  struct Block {
    void* data;
    size_t bytes;
    uint64_t released;  // the number of the release
  };
  std::vector<Block> take_superfluous();

  mutable std::mutex mutex_;
  std::deque<Block> kept_;  // in order of release
  int64_t max_kept_bytes_;
  int64_t kept_bytes_ = 0;
  int64_t used_bytes_ = 0;
  uint64_t num_releases_ = 0;
};

/// Memory from the pool of the process if it is large, from the C allocator otherwise. Aligned to 64 bytes: a cache
/// line, and an AVX-512 register. Content is undefined.
void* allocate_host(size_t bytes);
void release_host(void* data, size_t bytes) noexcept;

/// Owns such memory.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(size_t bytes) : memory_(allocate_host(bytes), Release{bytes}) {}
  char* data() const { return static_cast<char*>(memory_.get()); }

 private:
  struct Release {
    size_t bytes;
    void operator()(void* data) const noexcept { release_host(data, bytes); }
  };
  std::unique_ptr<void, Release> memory_;
};

/// Allocator for vectors of scratch.
template <class T>
struct HostAllocator {
  using value_type = T;
  HostAllocator() = default;
  template <class U>
  HostAllocator(const HostAllocator<U>&) {}
  T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(allocate_host(count * sizeof(T)));
  }
  void deallocate(T* data, size_t count) noexcept { release_host(data, count * sizeof(T)); }
  friend bool operator==(const HostAllocator&, const HostAllocator&) { return true; }
};
template <class T>
using HostVector = std::vector<T, HostAllocator<T>>;

}  // namespace tangram
