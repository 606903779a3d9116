// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// When a block of lists is used again, over a runtime in host memory.
#include "cuda/list_memory.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "cuda/counting_runtime.hpp"

namespace tangram::cuda {
namespace {

using testing::runtime_counts;

constexpr size_t kBytes = 100'000;

cudaStream_t stream(uintptr_t number) { return reinterpret_cast<cudaStream_t>(16 * (number + 1)); }

ListBlock make(ListMemory& memory, size_t bytes = kBytes, int value = 1) {
  return memory.fill(bytes, [&](std::byte* to) { std::memset(to, value, bytes); });
}

TEST(ListMemory, BlocksHoldWhatWasWritten) {
  ListMemory memory;
  const ListBlock block = make(memory, 1000, 7), large = make(memory, ListMemory::kMostBytes + 1, 3);
  EXPECT_EQ(*static_cast<const char*>(block.data()), 7);
  EXPECT_EQ(static_cast<const char*>(block.data())[999], 7);
  EXPECT_EQ(static_cast<const char*>(large.data())[ListMemory::kMostBytes], 3);
  EXPECT_EQ(make(memory, 0).data(), nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % 256, 0u);
}

TEST(ListMemory, FewSizesThatAreLittleLarger) {
  std::set<size_t> sizes;
  for (size_t bytes = 1; bytes < 1'000'000; bytes += 997) {
    const size_t block = ListMemory::block_bytes(bytes);
    EXPECT_GE(block, bytes);
    EXPECT_LE(block, bytes + bytes / 8 + 256);
    EXPECT_EQ(block % 256, 0u);
    sizes.insert(block);
  }
  EXPECT_LT(sizes.size(), 90u);
}

TEST(ListMemory, ABlockWithoutReadersIsFreeAtOnce) {
  ListMemory memory;
  const void* const first = make(memory).data();
  EXPECT_EQ(make(memory).data(), first);
}

TEST(ListMemory, AStreamThatReadsItMustHavePassed) {
  ListMemory memory;
  const ListBlock other = make(memory);
  std::optional<ListBlock> block = make(memory);
  const void* const data = block->data();
  block->before_call(stream(0));
  block.reset();
  EXPECT_NE(make(memory).data(), data) << "a kernel may read it";
  other.before_call(stream(1));
  EXPECT_NE(make(memory).data(), data) << "on another stream";
  other.before_call(stream(0));
  testing::set_events_ready(false);
  EXPECT_NE(make(memory).data(), data) << "the kernel runs";
  testing::set_events_ready(true);
  std::vector<ListBlock> more;
  std::set<const void*> places;
  for (int i = 0; i < 3; ++i) places.insert(more.emplace_back(make(memory)).data());
  EXPECT_EQ(places.count(data), 1u);
}

TEST(ListMemory, AllStreamsThatReadItMustHavePassed) {
  ListMemory memory;
  const ListBlock other = make(memory);
  std::optional<ListBlock> block = make(memory);
  const void* const data = block->data();
  for (const uintptr_t reader : {0, 1, 0}) block->before_call(stream(reader));
  block->before_call(nullptr);
  block.reset();
  for (const cudaStream_t passing : {stream(0), stream(1)}) {
    other.before_call(passing);
    EXPECT_NE(make(memory).data(), data);
  }
  other.before_call(cudaStreamLegacy);  // the default stream by its other name
  std::set<const void*> places;
  std::vector<ListBlock> more;
  for (int i = 0; i < 2; ++i) places.insert(more.emplace_back(make(memory)).data());
  EXPECT_EQ(places.count(data), 1u);
}

// A stream that was destroyed leaves its handle to a later one, which knows nothing of the kernel that reads.
TEST(ListMemory, AStreamWithTheHandleOfAnotherIsNotTheSame) {
  ListMemory memory;
  const ListBlock other = make(memory);
  std::optional<ListBlock> block = make(memory);
  const void* const data = block->data();
  block->before_call(stream(0));
  block.reset();
  testing::set_stream_generation(1);
  other.before_call(stream(0));
  EXPECT_NE(make(memory).data(), data);
  testing::set_stream_generation(0);
}

// A new key had as many waits and three times as many calls about events as copies.
TEST(ListMemory, CopiesInARowShareAWaitOfTheStreamThatReads) {
  ListMemory memory;
  std::vector<std::vector<ListBlock>> kept;
  for (const int first : {0, 8}) {
    const testing::RuntimeCounts before = runtime_counts();
    std::vector<ListBlock>& blocks = kept.emplace_back();
    for (int i = 0; i < 8; ++i) blocks.push_back(make(memory, 10'000, first + i));
    for (const uintptr_t reader : {0, 0, 1}) {
      for (const ListBlock& block : blocks) block.before_call(stream(reader));
    }
    const testing::RuntimeCounts now = runtime_counts();
    EXPECT_EQ(now.copies - before.copies, 8);
    EXPECT_LE(now.event_calls - before.event_calls, 2) << "an event behind all of them, and whether those before ran";
    EXPECT_EQ(now.stream_waits - before.stream_waits, 1) << "blocks are there for all streams after the first call";
    for (int i = 0; i < 8; ++i) EXPECT_EQ(*static_cast<const char*>(blocks[static_cast<size_t>(i)].data()), first + i);
    for (int i = 0; i < 2; ++i) blocks.push_back(make(memory));
    const int64_t waits = runtime_counts().stream_waits;
    for (const size_t i : {0, 1}) blocks[8 + i].before_call(stream(i));
    EXPECT_EQ(runtime_counts().stream_waits, waits + 2) << "each stream for what it reads";
  }
}

// While a GPU is at work, each copy asked for each block that had been given back.
TEST(ListMemory, BlocksThatWaitForOneEventAskForItOnce) {
  ListMemory memory;
  const ListBlock other = make(memory);
  std::vector<ListBlock> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(make(memory));
    blocks.back().before_call(stream(0));
  }
  blocks.clear();
  other.before_call(stream(0));  // behind which all three are free
  testing::set_events_ready(false);
  const int64_t before = runtime_counts().event_calls;
  const ListBlock busy = make(memory, 1000);
  EXPECT_EQ(runtime_counts().event_calls, before + 2) << "and for copies that have run";
  testing::set_events_ready(true);
  const ListBlock next = make(memory, 1000), last = make(memory, 1000);
  EXPECT_EQ(runtime_counts().event_calls, before + 3);
}

// What was written last lies in the processor's caches.
TEST(ListMemory, WhereAllCopiesHaveRunTheSameHostMemoryIsWrittenAgain) {
  ListMemory memory;
  const std::byte* written = nullptr;
  const auto fill = [&] { return memory.fill(1000, [&](std::byte* to) { written = to; }); };
  std::vector<ListBlock> blocks;
  blocks.push_back(fill());
  const std::byte* const first = written;
  blocks.push_back(fill());
  EXPECT_NE(written, first) << "its copy has not been waited for";
  for (const ListBlock& block : blocks) block.before_call(stream(0));
  testing::set_events_ready(false);
  blocks.push_back(fill());
  EXPECT_NE(written, first) << "its copy has not run";
  testing::set_events_ready(true);
  blocks.back().before_call(stream(0));
  blocks.push_back(fill());
  EXPECT_EQ(written, first);
}

// Copies that have not run yet keep their bytes, however many follow.
TEST(ListMemory, CopiesWaitOnlyForThoseAWholeRingAgo) {
  ListMemory memory;
  std::vector<ListBlock> blocks;
  testing::set_events_ready(false);
  const testing::RuntimeCounts before = runtime_counts();
  for (int i = 0; i < 20; ++i) blocks.push_back(make(memory, kBytes, i));  // five to a part of 512 KiB
  EXPECT_EQ(runtime_counts().waits, before.waits);
  blocks.push_back(make(memory, kBytes, 20));
  EXPECT_EQ(runtime_counts().waits, before.waits + 1);
  testing::set_events_ready(true);
  for (int i = 0; i < 21; ++i) {
    EXPECT_EQ(static_cast<const char*>(blocks[static_cast<size_t>(i)].data())[kBytes - 1], i);
  }
}

TEST(ListMemory, WhatAGraphReadsIsUsedAgainAfterAWait) {
  ListMemory memory;
  std::optional<ListBlock> block = make(memory);
  const void* const data = block->data();
  testing::set_captured(true);
  int64_t waits = runtime_counts().waits;
  const int64_t spoiled = runtime_counts().spoiled_captures;
  block->before_call(stream(0));
  EXPECT_EQ(runtime_counts().waits, waits + 1) << "for the copy, which is no part of the graph";
  block->before_call(stream(0));
  EXPECT_EQ(runtime_counts().waits, waits + 1);
  testing::set_captured(false);
  block->before_call(stream(1));
  waits = runtime_counts().waits;
  block.reset();
  EXPECT_EQ(runtime_counts().waits, waits + 1);
  EXPECT_EQ(make(memory).data(), data);
  EXPECT_EQ(runtime_counts().spoiled_captures, spoiled);
}

TEST(ListMemory, MemoryThatWaitsIsBounded) {
  ListMemory memory;
  size_t most = 0;
  for (int i = 0; i < 1000; ++i) {
    ListBlock block = make(memory, kBytes + static_cast<size_t>(i) * 1000);
    block.before_call(stream(static_cast<uintptr_t>(i)));  // which is never used again
    {
      const ListBlock gone = std::move(block);
    }
    most = std::max(most, memory.kept_bytes());
  }
  EXPECT_LE(most, 2 * ListMemory::kMostKeptBytes);
  EXPECT_EQ(memory.used_bytes(), 0u);
}

// Lists of a million rows on one GPU: those of two passes, of other masks at each step, one step behind the host.
TEST(ListMemory, LargeListsOfMasksThatChangeDoNotWait) {
  ListMemory memory;
  std::vector<ListBlock> kept;
  testing::RuntimeCounts before;
  for (int step = 0; step < 20; ++step) {
    if (step == 4) before = runtime_counts();
    for (const size_t bytes : {size_t{9} << 20, size_t{14} << 20}) {
      kept.push_back(make(memory, bytes + static_cast<size_t>(step * 7919 % 300'000)));
      kept.back().before_call(stream(0));
    }
    if (kept.size() > 4) kept.erase(kept.begin(), kept.begin() + 2);
  }
  EXPECT_EQ(runtime_counts().waits, before.waits);
  EXPECT_EQ(runtime_counts().allocations, before.allocations);
  EXPECT_EQ(runtime_counts().host_allocations, before.host_allocations);
}

TEST(ListMemory, BlocksOfUnlikeMasksServeEachOther) {
  ListMemory memory;
  std::vector<ListBlock> kept;
  const auto step = [&](int i) {
    const size_t bytes = 20'000 + static_cast<size_t>(i) * 7919 % 30'000;
    kept.push_back(make(memory, bytes));
    kept.back().before_call(stream(0));
    if (kept.size() > 100) kept.erase(kept.begin());
  };
  for (int i = 0; i < 200; ++i) step(i);
  const size_t after_200 = memory.used_bytes() + memory.kept_bytes();
  for (int i = 200; i < 2000; ++i) step(i);
  EXPECT_EQ(memory.used_bytes() + memory.kept_bytes(), after_200);
  const int64_t waits = runtime_counts().waits;
  kept.clear();
  EXPECT_EQ(runtime_counts().waits, waits);
}

TEST(ListMemory, AllocationsAreForManyBlocks) {
  ListMemory memory;
  const int64_t before = runtime_counts().allocations;
  std::vector<ListBlock> blocks;
  for (int i = 0; i < 256; ++i) blocks.push_back(make(memory));
  EXPECT_LE(runtime_counts().allocations - before, 6);
  EXPECT_LE(memory.kept_bytes(), memory.used_bytes() + (size_t{2} << 20)) << "no more than twice what is used";
}

}  // namespace
}  // namespace tangram::cuda
