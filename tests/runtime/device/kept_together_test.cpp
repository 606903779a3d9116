// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Pieces of memory that are copied as one.
#include "runtime/device/kept_together.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace tangram {
namespace {

/// Counts what is copied, and which streams wait.
struct Kept final : KeptMemory {
  explicit Kept(size_t bytes) : memory(bytes) {}
  const void* data() const override { return memory.data(); }
  void before_call(void* stream) const override { streams.push_back(stream); }

  std::vector<std::byte> memory;
  mutable std::vector<void*> streams;
};

TEST(KeptTogether, PiecesAreOneCopyAndOutliveEachOther) {
  std::weak_ptr<Kept> only;
  int num_copies = 0;
  ProgramDevice device;
  device.keep = [&](size_t bytes, const std::function<void(std::byte*)>& write) {
    const auto kept = std::make_shared<Kept>(bytes);
    write(kept->memory.data());
    only = kept;
    ++num_copies;
    return kept;
  };
  std::shared_ptr<const KeptMemory> first, none, second;
  {
    KeptTogether together;
    const auto fill = [](size_t bytes, int value) { return [=](std::byte* to) { std::memset(to, value, bytes); }; };
    first = together.add(300, fill(300, 1));
    none = together.add(0, fill(0, 2));
    second = together.add(10, fill(10, 3));
    together.keep(device);
  }
  EXPECT_EQ(num_copies, 1);
  const auto byte = [](const std::shared_ptr<const KeptMemory>& of, size_t at) {
    return static_cast<const char*>(of->data())[at];
  };
  EXPECT_EQ(byte(first, 0) + byte(first, 299), 2);
  EXPECT_EQ((static_cast<const std::byte*>(second->data()) - only.lock()->memory.data()) % 256, 0);
  first.reset();
  none.reset();
  EXPECT_EQ(byte(second, 0) + byte(second, 9), 6) << "the block stays for the last of them";
  int stream = 0;
  second->before_call(&stream);
  EXPECT_EQ(only.lock()->streams, std::vector<void*>{&stream});
  second.reset();
  EXPECT_TRUE(only.expired());
}

TEST(KeptTogether, NothingIsKeptWhereNothingWasAdded) {
  ProgramDevice device;  // which would throw
  EXPECT_NO_THROW(KeptTogether().keep(device));
}

}  // namespace
}  // namespace tangram
