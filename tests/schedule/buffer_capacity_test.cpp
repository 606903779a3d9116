// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/buffer_capacity.hpp"

#include <gtest/gtest.h>

#include "support/message_of.hpp"

namespace tangram::schedule {
namespace {

TEST(BufferRoom, LargeBlocksCountAsSlicesOf128Rows) {
  EXPECT_FALSE(fills_steps({}));
  EXPECT_FALSE(fills_steps({.block_size = 64}));
  EXPECT_FALSE(fills_steps({.block_size = 128, .head_groups = 2})) << "each has blocks of its own";
  EXPECT_TRUE(fills_steps({.block_size = 384}));
  EXPECT_EQ(list_capacity({.max_documents = 9}), (MaskCapacity{.max_documents = 9, .max_slices = 9}));
  EXPECT_EQ(list_capacity({.max_slices = 7, .block_size = 384}),
            (MaskCapacity{.max_documents = 1, .max_slices = 21, .block_size = 384}));
}

TEST(BufferRoom, NamesWhatToMakeLarger) {
  const AttnShape shape{256, 256, 4, 2, 128, 128, DType::kBFloat16};
  const int32_t list[4] = {};
  const auto refusal = [&](const MaskData& data, const MaskCapacity& capacity) {
    return support::message_of([&] { check_capacity(data, shape, list_capacity(capacity)); });
  };
  EXPECT_EQ(refusal(BlockTable{.indices = list, .width = 2, .block_size = 128}, {.max_slices = 4}),
            "nothing was thrown");
  EXPECT_EQ(refusal(BlockTable{.indices = list, .width = 2, .block_size = 128}, {.max_slices = 3}),
            "MaskBuffer::set_blocks: the mask must fit the buffer, a larger max_slices makes room (got 2 query blocks "
            "of up to 2 "
            "blocks, room for 3 blocks)");
  EXPECT_EQ(refusal(BlockTable{.indices = list, .width = 1, .block_size = 192}, {.max_slices = 9, .block_size = 128}),
            "MaskBuffer::set_blocks: block_size must be a multiple of the buffer's, 128 (got block_size=192)");
  EXPECT_EQ(refusal(BlockTable{.indices = list, .width = 1, .block_size = 128, .head_groups = 2}, {.max_slices = 9}),
            "MaskBuffer::set_blocks: blocks of head groups must be of a buffer made for blocks, "
            "MaskCapacity::block_size and head_groups (got head_groups=2)");
  EXPECT_EQ(refusal(CuSeqlens{.q = list, .documents = 3, .window = {-2, 0}}, {}),
            "MaskBuffer::set_cu_seqlens: window sides must be -1 (unbounded) or more (got left=-2, right=0)");
  EXPECT_EQ(refusal(CuSeqlens{.documents = 3}, {}), "MaskBuffer::set_cu_seqlens: needs cu_seqlens_q (got none)");
  EXPECT_EQ(refusal(RangeList{.q_ranges = list, .count = 2}, {}), "MaskBuffer::set_ranges: needs ranges (got none)");
  EXPECT_EQ(refusal(RangeList{}, {.block_size = 128}),
            "MaskBuffer: a buffer made for blocks must get them by set_blocks() or set() (got ranges)");
}

}  // namespace
}  // namespace tangram::schedule
