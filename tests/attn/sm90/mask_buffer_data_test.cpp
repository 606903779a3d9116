// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskBuffer on a GPU whose masks lie in device memory, as far as its host side goes: kernels alone build their lists,
// and what is wrong without a look at the data is refused. Counted as in mask_buffer_host_test.cpp.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attn/sm90/counted_buffers.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/counting_runtime.hpp"
#include "support/message_of.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_buffer.hpp"

namespace tangram {
namespace {

using testing::runtime_counts;
using testing::RuntimeCounts;

using counted::BufferOperands;
using counted::kRows;
using counted::kShape;
using counted::since;

TEST(MaskBuffer, DocumentsInDeviceMemoryAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.max_documents = 128}, backend);
  const std::vector<int32_t> ends{0, 100, static_cast<int32_t>(kRows)};
  const CuSeqlens documents{.q = ends.data(), .documents = 2, .causal = true};
  testing::set_captured(true);
  const std::string first = support::message_of([&] { buffer.set_cu_seqlens(documents); });
  EXPECT_NE(first.find("must be set before a stream is captured"), std::string::npos) << first;
  testing::set_captured(false);
  const int64_t bytes = buffer.device_bytes();
  buffer.set_cu_seqlens(documents);
  EXPECT_GT(buffer.device_bytes(), bytes);
  for (const bool captured : {false, true}) {
    testing::set_captured(captured);
    const RuntimeCounts before = runtime_counts();
    buffer.set_cu_seqlens(documents);
    const RuntimeCounts made = since(before);
    EXPECT_EQ(made.launches, 4);
    EXPECT_EQ(made.copies, 1) << "what was refused";
    EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
    operands.step(buffer);
  }
  testing::set_captured(false);
  EXPECT_EQ(buffer.num_masks(), 3);
  buffer.check_errors();
  const std::string many = support::message_of([&] { buffer.set_cu_seqlens({.q = ends.data(), .documents = 129}); });
  EXPECT_NE(many.find("a larger max_documents makes room (got 129 documents, room for 128)"), std::string::npos)
      << many;
  EXPECT_THROW(buffer.set_cu_seqlens({.documents = 1}), InvalidArgument) << "no list";
  EXPECT_THROW(buffer.set_cu_seqlens({.q = ends.data(), .documents = 2, .window = {-2, 0}}), InvalidArgument);
}

TEST(MaskBuffer, TurnsOfDeterministicCallsAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.max_documents = 128, .deterministic = true}, backend);
  const std::vector<int32_t> ends{0, 100, static_cast<int32_t>(kRows)};
  const CuSeqlens documents{.q = ends.data(), .documents = 2, .causal = true};
  buffer.set_cu_seqlens(documents);
  for (const bool captured : {false, true}) {
    testing::set_captured(captured);
    const RuntimeCounts before = runtime_counts();
    buffer.set_cu_seqlens(documents);
    const RuntimeCounts made = since(before);
    EXPECT_EQ(made.launches, 4 + 5);
    EXPECT_EQ(made.copies, 1) << "what was refused";
    EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
    operands.step(buffer);
  }
  testing::set_captured(false);
  MaskBuffer forward_alone(kShape, {.max_documents = 128, .deterministic = true, .passes = AttnPasses::kForward},
                           backend);
  forward_alone.set_cu_seqlens(documents);
  const RuntimeCounts before = runtime_counts();
  forward_alone.set_cu_seqlens(documents);
  EXPECT_EQ(since(before).launches, 4) << "no turns";
}

TEST(MaskBuffer, BlocksInDeviceMemoryAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.max_documents = 1, .max_slices = 64}, backend);
  const std::vector<int64_t> indices(64, -1);
  const BlockTable table{.indices = indices.data(), .is_int64 = true, .width = 2, .block_size = 128};
  buffer.set_blocks(table);
  for (const bool captured : {false, true}) {
    testing::set_captured(captured);
    const RuntimeCounts before = runtime_counts();
    buffer.set_blocks(table);
    const RuntimeCounts made = since(before);
    EXPECT_EQ(made.launches, 8);
    EXPECT_EQ(made.copies, 1) << "what was refused";
    EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
    operands.step(buffer);
  }
  const auto message = [&](const BlockTable& other) { return support::message_of([&] { buffer.set_blocks(other); }); };
  BlockTable other = table;
  other.block_size = 64;
  other.width = 1;
  EXPECT_NE(message(other).find("must be set before a stream is captured"), std::string::npos) << message(other);
  testing::set_captured(false);
  buffer.set_blocks(other);
  other.width = 2;
  EXPECT_NE(message(other).find("got 64 query blocks of up to 2 blocks, room for 64 blocks"), std::string::npos);
  other.block_size = 15;
  EXPECT_NE(message(other).find("block_size must be at least 16"), std::string::npos);
  other = table;
  other.indices = nullptr;
  EXPECT_NE(message(other).find("needs block indices"), std::string::npos);
}

TEST(MaskBuffer, RangesInDeviceMemoryAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.max_documents = 16}, backend);
  const std::vector<int32_t> pairs(32, 0);
  const RangeList ranges{.q_ranges = pairs.data(), .k_ranges = pairs.data(), .types = pairs.data(), .count = 16};
  buffer.set_ranges(ranges);
  const RuntimeCounts before = runtime_counts();
  testing::set_captured(true);
  buffer.set_ranges(ranges);
  testing::set_captured(false);
  const RuntimeCounts made = since(before);
  EXPECT_EQ(made.launches, 10) << "three of them put ranges in order";
  EXPECT_EQ(made.copies, 1) << "what was refused";
  EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
  operands.step(buffer);
  RangeList other = ranges;
  other.count = 17;
  const std::string many = support::message_of([&] { buffer.set_ranges(other); });
  EXPECT_NE(many.find("a larger max_slices makes room (got 17 ranges, room for 16)"), std::string::npos) << many;
  other = {.count = 1};
  EXPECT_THROW(buffer.set_ranges(other), InvalidArgument);
}

}  // namespace
}  // namespace tangram
