// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskBuffer on a GPU made for blocks, as far as its host side goes: which kernels build lists and read them, that
// nothing in a CUDA graph depends on the blocks, and what is refused. Counted as in mask_buffer_host_test.cpp.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/counted_buffers.hpp"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/query_backward/params.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/counting_runtime.hpp"
#include "support/message_of.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_buffer.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using testing::Launch;
using testing::runtime_counts;
using testing::RuntimeCounts;

using counted::BufferOperands;
using counted::kRows;
using counted::kShape;
using counted::since;
using sm90::ForwardParams;
using sm90::backward::Params;
using sm90::backward::PrePostParams;

/// Blocks of 32 of a table for each of two head groups.
constexpr MaskCapacity kBlocksOfTwo{.max_slices = 2 * 128 * 8, .block_size = 32, .head_groups = 2};

TEST(MaskBuffer, SmallBlocksAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, kBlocksOfTwo, backend);
  EXPECT_NE(support::message_of([&] { buffer.forward(operands.forward()); }).find("set() must come first"),
            std::string::npos);
  const std::vector<int32_t> indices(2 * 128 * 8, -1);
  const BlockTable table{.indices = indices.data(), .width = 8, .block_size = 32, .head_groups = 2};
  for (const bool captured : {true, false}) {  // the first time too
    testing::set_captured(captured);
    RuntimeCounts before = runtime_counts();
    buffer.set_blocks(table);
    RuntimeCounts made = since(before);
    EXPECT_EQ(made.launches, 5);
    EXPECT_EQ(made.copies, 1) << "what was refused";
    EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
    before = runtime_counts();
    operands.step(buffer);
    made = since(before);
    EXPECT_EQ(made.launches, 4) << "one of the forward pass, and three of the backward pass";
    EXPECT_EQ(made.copies + made.allocations + made.host_allocations + made.frees + made.waits, 0);
  }
  testing::set_captured(false);
  buffer.check_errors();
  const auto message = [&](auto call) { return support::message_of(call); };
  BlockTable other = table;
  other.head_groups = 1;
  EXPECT_NE(message([&] { buffer.set_blocks(other); }).find("of the buffer's head groups, 2"), std::string::npos);
  EXPECT_NE(message([&] { buffer.set(causal_mask(kRows, kRows)); }).find("head groups, 2 (got 1)"), std::string::npos);
  EXPECT_NE(message([&] { buffer.set_cu_seqlens({.q = indices.data(), .documents = 2}); }).find("made for blocks"),
            std::string::npos);
  MaskBuffer plain(kShape, {.max_slices = 4096}, backend);
  EXPECT_NE(message([&] { plain.set_blocks(table); }).find("must be of a buffer made for blocks"), std::string::npos);
}

Mask random_blocks(unsigned seed, int64_t block, int64_t one_in = 16) {
  std::vector<AttnSlice> slices;
  for (int64_t row = 0; row < kRows; row += block) {
    for (int64_t key = (seed * 7 + row) % (4 * block) / block * block; key < kRows; key += one_in * block) {
      slices.push_back(AttnSlice::full({row, std::min(row + block, kRows)}, {key, std::min(key + block, kRows)}));
    }
  }
  return Mask(kRows, kRows, slices);
}

TEST(MaskBuffer, NothingThatAGraphRecordsDependsOnTheBlocks) {
  const Sm90Backend backend;
  using Edge = sm90::query_backward::PrePostParams;
  const std::vector<size_t> sizes{sizeof(sm90::GatheredParams), sizeof(Edge), sizeof(sm90::query_backward::Params),
                                  sizeof(Edge)};
  for (const int head_dim : {64, 128}) {
    for (const int head_groups : {1, 2}) {
      BufferOperands operands;
      AttnShape shape = kShape;
      operands.head_dim = operands.head_dim_v = shape.head_dim = shape.head_dim_v = head_dim;
      MaskCapacity capacity = kBlocksOfTwo;
      capacity.head_groups = head_groups;
      MaskBuffer buffer(shape, capacity, backend);
      const auto launches = [&] {
        testing::record_launches(sizes);
        operands.step(buffer);
        return testing::recorded_launches();
      };
      const std::vector<int32_t> indices(2 * 128 * 8, 0);
      buffer.set_blocks({.indices = indices.data(), .width = 8, .block_size = 32, .head_groups = head_groups});
      const std::vector<Launch> expected = launches();
      ASSERT_EQ(expected.size(), sizes.size());
      buffer.set_blocks({.indices = indices.data(), .width = 2, .block_size = 64, .head_groups = head_groups});
      EXPECT_TRUE(launches() == expected);
      for (unsigned seed = 0; seed < 4; ++seed) {
        std::vector<Mask> masks;
        for (int g = 0; g < head_groups; ++g) {
          masks.push_back(seed == 0 ? Mask(kRows, kRows, {})
                                    : random_blocks(seed + static_cast<unsigned>(g), 32 * seed));
        }
        const RuntimeCounts before = runtime_counts();
        buffer.set(masks);
        EXPECT_EQ(since(before).copies, 1);
        EXPECT_EQ(since(before).launches + since(before).allocations, 0);
        EXPECT_TRUE(launches() == expected);
      }
    }
  }
}

// Blocks of 128 for all heads: other kernels, of which a graph records as little.
TEST(MaskBuffer, BlocksThatFillStepsTakeKernelsThatDoNotGather) {
  const Sm90Backend backend;
  for (const int head_dim : {64, 128}) {
    BufferOperands operands;
    AttnShape shape = kShape;
    operands.head_dim = operands.head_dim_v = shape.head_dim = shape.head_dim_v = head_dim;
    MaskBuffer buffer(shape, {.max_slices = 32 * 8, .block_size = 128}, backend);
    const int64_t host_bytes = buffer.host_bytes();
    const std::vector<int32_t> indices(32 * 8, -1);
    BlockTable table{.indices = indices.data(), .width = 8, .block_size = 128};
    testing::set_captured(true);  // the first time too
    RuntimeCounts before = runtime_counts();
    buffer.set_blocks(table);
    EXPECT_EQ(since(before).launches, 8);
    EXPECT_EQ(since(before).copies, 1) << "what was refused";
    EXPECT_EQ(since(before).allocations + since(before).host_allocations + since(before).waits, 0);
    testing::set_captured(false);
    const size_t forward = head_dim == 64 ? sizeof(sm90::GatheredParams) : sizeof(ForwardParams);
    const auto launches = [&] {
      testing::record_launches({forward, sizeof(PrePostParams), sizeof(Params), sizeof(PrePostParams)});
      operands.step(buffer);
      return testing::recorded_launches();
    };
    const std::vector<Launch> expected = launches();
    ASSERT_EQ(expected.size(), 4u);
    Params params;
    std::memcpy(static_cast<void*>(&params), expected[2].parameter.data(), sizeof(params));
    EXPECT_EQ(params.covered_queries, nullptr) << "blocks are seen by whole tiles";
    table.block_size = 256;
    table.width = 4;
    buffer.set_blocks(table);
    EXPECT_TRUE(launches() == expected);
    EXPECT_EQ(buffer.host_bytes(), host_bytes);
    for (unsigned seed = 0; seed < 3; ++seed) {
      before = runtime_counts();
      buffer.set(seed == 0 ? causal_mask(kRows, kRows) : random_blocks(seed, 128 * seed));
      EXPECT_EQ(since(before).copies, 1);
      EXPECT_EQ(since(before).launches + since(before).allocations, 0);
      EXPECT_TRUE(launches() == expected);
    }
    EXPECT_GT(buffer.host_bytes(), host_bytes) << "for masks of the host";
    const auto message = [&](auto call) { return support::message_of(call); };
    const Mask of_few(kRows, kRows, {AttnSlice::full({0, 160}, {0, 128})});
    EXPECT_NE(message([&] { buffer.set(of_few); }).find("all queries of a tile of 64 see something, or none"),
              std::string::npos);
    table.block_size = 192;
    EXPECT_NE(message([&] { buffer.set_blocks(table); }).find("must be a multiple of the buffer's, 128"),
              std::string::npos);
    EXPECT_NE(message([&] { buffer.set_cu_seqlens({.q = indices.data(), .documents = 2}); }).find("made for blocks"),
              std::string::npos);
    AttnBackwardArgs args = operands.backward(buffer);
    args.options.softcap = 5;
    buffer.backward(args);
    MaskBuffer deterministic(shape, {.max_slices = 32 * 8, .deterministic = true, .block_size = 128}, backend);
    deterministic.set(random_blocks(1, 128));
    operands.step(deterministic);
  }
}

TEST(MaskBuffer, BlocksOfHeadGroupsThatFillStepsTakeKernelsThatDoNotGather) {
  const Sm90Backend backend;
  for (const int head_dim : {64, 128}) {
    BufferOperands operands;
    AttnShape shape = kShape;
    operands.head_dim = operands.head_dim_v = shape.head_dim = shape.head_dim_v = head_dim;
    operands.heads_kv = shape.num_heads_kv = 16;  // fewer tiles of keys are gathered
    MaskBuffer buffer(shape, {.max_slices = 2 * 32 * 8, .block_size = 128, .head_groups = 2}, backend);
    const size_t forward = head_dim == 64 ? sizeof(sm90::GatheredParams) : sizeof(ForwardParams);
    const auto launches = [&] {
      testing::record_launches({forward, sizeof(PrePostParams), sizeof(Params), sizeof(PrePostParams)});
      operands.step(buffer);
      return testing::recorded_launches();
    };
    const std::vector<int32_t> tables(2 * 32 * 8, -1);
    const RuntimeCounts before = runtime_counts();
    buffer.set_blocks({.indices = tables.data(), .width = 8, .block_size = 128, .head_groups = 2});
    EXPECT_EQ(since(before).launches, 5);
    const std::vector<Launch> expected = launches();
    ASSERT_EQ(expected.size(), 4u);
    Params params;
    std::memcpy(static_cast<void*>(&params), expected[2].parameter.data(), sizeof(params));
    EXPECT_EQ(params.covered_queries, nullptr) << "blocks are seen by whole tiles";
    EXPECT_EQ(params.mask_info, nullptr) << "the number of items does not follow the mask";
    buffer.set_blocks({.indices = tables.data(), .width = 4, .block_size = 256, .head_groups = 2});
    EXPECT_TRUE(launches() == expected);
    buffer.set(std::vector{random_blocks(1, 128), random_blocks(2, 128)});
    EXPECT_TRUE(launches() == expected);
    const auto refused = [&](const Mask& mask) {
      return support::message_of([&] { buffer.set(std::vector{mask, random_blocks(2, 128)}); });
    };
    EXPECT_NE(refused(random_blocks(1, 128, 2)).find("a larger max_slices makes room"), std::string::npos);
    const Mask of_few(kRows, kRows, {AttnSlice::full({0, 160}, {0, 128})});
    EXPECT_NE(refused(of_few).find("all queries of a tile of 64 see something, or none"), std::string::npos);
    AttnBackwardArgs args = operands.backward(buffer);
    args.options.softcap = 5;  // as of blocks that are gathered
    EXPECT_THROW(buffer.backward(args), InvalidArgument);
    shape.num_heads_kv = operands.heads_kv = 2;
    MaskBuffer of_few_tiles(shape, {.max_slices = 2 * 32 * 8, .block_size = 128, .head_groups = 2}, backend);
    of_few_tiles.set(std::vector{random_blocks(1, 128), random_blocks(2, 128)});
    using Edge = sm90::query_backward::PrePostParams;
    testing::record_launches({forward, sizeof(Edge), sizeof(sm90::query_backward::Params), sizeof(Edge)});
    operands.step(of_few_tiles);
    EXPECT_EQ(testing::recorded_launches().size(), 4u);
  }
}

TEST(MaskBuffer, CallsThatBlocksAreNotForAreRefused) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskCapacity capacity = kBlocksOfTwo;
  capacity.head_groups = 1;
  MaskBuffer buffer(kShape, capacity, backend);
  buffer.set(random_blocks(1, 32));
  AttnBackwardArgs args = operands.backward(buffer);
  args.options.softcap = 5;
  const std::string softcap = support::message_of([&] { buffer.backward(args); });
  EXPECT_NE(softcap.find("must be without softcap, dsink and accumulation"), std::string::npos) << softcap;
  const std::string window =
      support::message_of([&] { buffer.set(Mask(kRows, kRows, {{{0, kRows}, {0, kRows}, -100, 0}})); });
  EXPECT_NE(window.find("tiles of 16 queries see whole groups of 16 keys"), std::string::npos) << window;
  buffer.set(full_mask(kRows, kRows));  // of one list of groups
  const std::string full = support::message_of([&] { buffer.set(random_blocks(1, 16, 8)); });
  EXPECT_NE(full.find("a larger max_slices makes room"), std::string::npos) << full;
  AttnShape small = kShape;
  small.head_dim = 96;
  const std::string dim = support::message_of([&] { MaskBuffer(small, capacity, backend); });
  EXPECT_NE(dim.find("heads that gather them, of 64 or 128 (got head_dim=96"), std::string::npos) << dim;
  capacity.deterministic = true;
  EXPECT_THROW(MaskBuffer(kShape, capacity, backend), InvalidArgument);
  EXPECT_THROW(MaskBuffer(kShape, {.head_groups = 2}, backend), InvalidArgument) << "not made for blocks";
}

}  // namespace
}  // namespace tangram
