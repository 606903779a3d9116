// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/host_pool.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "tangram/error.hpp"
#include "tangram/tensor.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#error "the host pool does not know of AddressSanitizer (cmake/TangramOptions.cmake)"
#endif
#endif

namespace tangram {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(HostPool, WhatWasGivenBackIsTakenAgain) {
  HostPool pool(int64_t{64} << 20);
  void* first = pool.allocate(3 * kMiB);
  EXPECT_EQ(pool.use().used_bytes, static_cast<int64_t>(HostPool::block_bytes(3 * kMiB)));
  pool.release(first, 3 * kMiB);
  EXPECT_EQ(pool.use().used_bytes, 0);
  EXPECT_EQ(pool.use().num_kept, 1);
  void* second = pool.allocate(3 * kMiB - 5000);  // a few rows less
  EXPECT_EQ(second, first);
  EXPECT_EQ(pool.use().num_kept, 0);
  pool.release(second, 3 * kMiB - 5000);
}

#if defined(__SANITIZE_ADDRESS__)
TEST(HostPool, SanitizersSeeWhoUsesWhatWasGivenBackOrNotAskedFor) {
  HostPool pool(int64_t{64} << 20);
  auto* data = static_cast<char*>(pool.allocate(3 * kMiB - 5000));
  EXPECT_FALSE(__asan_address_is_poisoned(data + 3 * kMiB - 5001));
  EXPECT_TRUE(__asan_address_is_poisoned(data + 3 * kMiB - 4992));
  pool.release(data, 3 * kMiB - 5000);
  EXPECT_TRUE(__asan_address_is_poisoned(data));
}
#endif

TEST(HostPool, BlocksAreAtMostAQuarterLarger) {
  for (size_t bytes = HostPool::kMinBytes; bytes < 300 * kMiB; bytes += bytes / 7 + 1) {
    EXPECT_GE(HostPool::block_bytes(bytes), bytes);
    EXPECT_LE(HostPool::block_bytes(bytes), bytes + bytes / 4 + HostPool::kAlignment);
  }
}

// Buffers of random sizes and lifetimes never share a byte, are aligned, and never make the pool keep more than it may.
TEST(HostPool, RandomTraffic) {
  constexpr int64_t kMaxKept = 8 << 20;
  HostPool pool(kMaxKept);
  std::mt19937 random(7);
  struct Live {
    size_t bytes;
    unsigned char mark;
  };
  std::map<unsigned char*, Live> live;
  int64_t used = 0;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() < 12 && random() % 2 == 0) {
      const size_t bytes = HostPool::kMinBytes + random() % (2 * kMiB);
      auto* data = static_cast<unsigned char*>(pool.allocate(bytes));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % HostPool::kAlignment, 0u);
      const auto mark = static_cast<unsigned char>(i);
      data[0] = data[bytes - 1] = data[bytes / 2] = mark;
      ASSERT_TRUE(live.emplace(data, Live{bytes, mark}).second);
      used += static_cast<int64_t>(HostPool::block_bytes(bytes));
    } else if (!live.empty()) {
      auto victim = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
      const auto& [data, entry] = *victim;
      ASSERT_EQ(data[0], entry.mark);
      ASSERT_EQ(data[entry.bytes / 2], entry.mark);
      ASSERT_EQ(data[entry.bytes - 1], entry.mark);
      used -= static_cast<int64_t>(HostPool::block_bytes(entry.bytes));
      pool.release(data, entry.bytes);
      live.erase(victim);
    }
    ASSERT_LE(pool.use().kept_bytes, kMaxKept);
    ASSERT_EQ(pool.use().used_bytes, used);
  }
  for (const auto& [data, entry] : live) pool.release(data, entry.bytes);
  EXPECT_EQ(pool.use().used_bytes, 0);
}

TEST(HostPool, UnusedBlocksAreReturned) {
  HostPool pool(int64_t{64} << 20);
  pool.release(pool.allocate(32 * kMiB), 32 * kMiB);
  for (uint64_t i = 0; i + 1 < HostPool::kMaxAge; ++i) {
    pool.release(pool.allocate(HostPool::kMinBytes), HostPool::kMinBytes);
  }
  EXPECT_EQ(pool.use().num_kept, 2);
  pool.release(pool.allocate(HostPool::kMinBytes), HostPool::kMinBytes);
  EXPECT_EQ(pool.use().num_kept, 1);
  EXPECT_LT(pool.use().kept_bytes, static_cast<int64_t>(kMiB));
}

TEST(HostPool, ASmallerBoundHoldsAtOnce) {
  HostPool pool(int64_t{64} << 20);
  void* blocks[4];
  for (void*& block : blocks) block = pool.allocate(4 * kMiB);
  for (void* block : blocks) pool.release(block, 4 * kMiB);
  EXPECT_EQ(pool.use().num_kept, 4);
  pool.set_max_kept_bytes(static_cast<int64_t>(9 * kMiB));
  EXPECT_EQ(pool.use().num_kept, 2);
  pool.set_max_kept_bytes(0);
  EXPECT_EQ(pool.use().kept_bytes, 0);
  pool.release(pool.allocate(4 * kMiB), 4 * kMiB);
  EXPECT_EQ(pool.use().kept_bytes, 0);
  EXPECT_THROW(pool.set_max_kept_bytes(-1), InvalidArgument);
}

TEST(HostPool, ThreadsShareIt) {
  HostPool pool(int64_t{4} << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 500; ++i) {
        const size_t bytes = HostPool::kMinBytes * static_cast<size_t>(1 + (i * (t + 1)) % 7);
        auto* data = static_cast<int*>(pool.allocate(bytes));
        data[0] = data[bytes / sizeof(int) - 1] = t;
        std::this_thread::yield();
        EXPECT_EQ(data[0] + data[bytes / sizeof(int) - 1], 2 * t);
        pool.release(data, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.use().used_bytes, 0);
}

TEST(HostTensor, LargeOnesComeFromThePool) {
  const int64_t before = host_memory_use().used_bytes;
  {
    HostTensor large(DType::kFloat32, 1024, 8, 64);
    HostTensor small(DType::kFloat32, 2, 8, 64);
    EXPECT_EQ(host_memory_use().used_bytes - before, static_cast<int64_t>(HostPool::block_bytes(2 * kMiB)));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(small.view().data) % 64, 0u);
    HostTensor moved = std::move(large);
    EXPECT_EQ(host_memory_use().used_bytes - before, static_cast<int64_t>(HostPool::block_bytes(2 * kMiB)));
  }
  EXPECT_EQ(host_memory_use().used_bytes, before);
}

TEST(HostPool, HugeRequestsThrow) {
  HostPool pool(0);
  EXPECT_THROW(pool.allocate(size_t{1} << 61), std::bad_alloc);
  EXPECT_THROW(pool.allocate(SIZE_MAX - 5), std::bad_alloc);
  EXPECT_EQ(pool.use().used_bytes, 0);
}

}  // namespace
}  // namespace tangram
