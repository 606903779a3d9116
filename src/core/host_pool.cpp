// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/host_pool.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "core/require.hpp"
#include "core/rounding.hpp"
#include "tangram/error.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) (static_cast<void>(data), static_cast<void>(bytes))
#endif

namespace tangram {

namespace {

[[noreturn]] void throw_out_of_memory(size_t bytes) {
  throw OutOfMemory(fmt::format("not enough memory: {} bytes were asked for", bytes));
}

constexpr size_t kSmallAlignment = 64;

void unmap(void* data, size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  munmap(data, bytes);
}

}  // namespace

size_t HostPool::block_bytes(size_t bytes) {
  const size_t step = std::bit_ceil(std::max(bytes, kMinBytes)) / 8;
  return round_up(bytes, std::max(step, kAlignment));
}

HostPool::~HostPool() {
  for (const Block& block : kept_) unmap(block.data, block.bytes);
}

HostPool& HostPool::of_process() {
  // Never destroyed: tensors of static storage may outlive every other object.
  static HostPool* const pool = [] {
    static HostPool* made;
    made = new HostPool(kDefaultKeptHostBytes);
    // A child of a process with threads must not find the lock taken by a thread that it has not.
    pthread_atfork([] { made->mutex_.lock(); }, [] { made->mutex_.unlock(); }, [] { made->mutex_.unlock(); });
    return made;
  }();
  return *pool;
}

void* HostPool::allocate(size_t bytes) {
  if (bytes > size_t{1} << 62) throw_out_of_memory(bytes);
  const size_t block = block_bytes(bytes);
  void* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    // The last that was given back: the processor's caches may still hold it.
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Block& b) { return b.bytes == block; });
    if (found != kept_.rend()) {
      data = found->data;
      kept_bytes_ -= static_cast<int64_t>(block);
      kept_.erase(std::next(found).base());
      used_bytes_ += static_cast<int64_t>(block);
    }
  }
  if (data == nullptr) {
    data = mmap(nullptr, block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw_out_of_memory(bytes);
    const std::lock_guard lock(mutex_);
    used_bytes_ += static_cast<int64_t>(block);
  }
  ASAN_UNPOISON_MEMORY_REGION(data, block);
  // What the caller did not ask for, so that a sanitizer sees who writes there.
  ASAN_POISON_MEMORY_REGION(static_cast<char*>(data) + round_up(bytes, 8), block - round_up(bytes, 8));
  return data;
}

void HostPool::release(void* data, size_t bytes) noexcept {
  if (data == nullptr) return;
  const size_t block = block_bytes(bytes);
  std::vector<Block> superfluous;
  try {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= static_cast<int64_t>(block);
    ASAN_POISON_MEMORY_REGION(data, block);
    kept_.push_back({data, block, ++num_releases_});
    data = nullptr;
    kept_bytes_ += static_cast<int64_t>(block);
    superfluous = take_superfluous();
  } catch (const std::bad_alloc&) {  // of the list: what is not in it goes back now
    if (data != nullptr) unmap(data, block);
  }
  for (const Block& old : superfluous) unmap(old.data, old.bytes);
}

std::vector<HostPool::Block> HostPool::take_superfluous() {
  size_t count = 0;
  int64_t kept_bytes = kept_bytes_;
  for (const Block& block : kept_) {
    if (kept_bytes <= max_kept_bytes_ && block.released + kMaxAge > num_releases_) break;
    kept_bytes -= static_cast<int64_t>(block.bytes);
    ++count;
  }
  const auto end = kept_.begin() + static_cast<ptrdiff_t>(count);
  std::vector<Block> superfluous(kept_.begin(), end);
  kept_.erase(kept_.begin(), end);
  kept_bytes_ = kept_bytes;
  return superfluous;
}

HostMemoryUse HostPool::use() const {
  const std::lock_guard lock(mutex_);
  return {used_bytes_, std::ssize(kept_), kept_bytes_, max_kept_bytes_};
}

void HostPool::set_max_kept_bytes(int64_t max_kept_bytes) {
  require(max_kept_bytes >= 0, "set_max_kept_host_bytes: max_kept_bytes must not be negative (got {})", max_kept_bytes);
  std::vector<Block> superfluous;
  {
    const std::lock_guard lock(mutex_);
    max_kept_bytes_ = max_kept_bytes;
    superfluous = take_superfluous();
  }
  for (const Block& old : superfluous) unmap(old.data, old.bytes);
}

void* allocate_host(size_t bytes) {
  if (bytes >= HostPool::kMinBytes) return HostPool::of_process().allocate(bytes);
  void* data = std::aligned_alloc(kSmallAlignment, round_up(std::max<size_t>(bytes, 1), kSmallAlignment));
  if (data == nullptr) throw_out_of_memory(bytes);
  return data;
}

void release_host(void* data, size_t bytes) noexcept {
  if (bytes >= HostPool::kMinBytes) {
    HostPool::of_process().release(data, bytes);
  } else {
    std::free(data);
  }
}

HostMemoryUse host_memory_use() { return HostPool::of_process().use(); }
void set_max_kept_host_bytes(int64_t max_kept_bytes) { HostPool::of_process().set_max_kept_bytes(max_kept_bytes); }

}  // namespace tangram
