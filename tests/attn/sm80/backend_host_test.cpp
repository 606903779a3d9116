// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What backend sm80 refuses by name, and what its lists are; without a GPU.
#include <gtest/gtest.h>

#include <vector>

#include "attn/sm80/kernel_table.hpp"
#include "attn/sm80/sm80_backend.hpp"
#include "support/message_of.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using support::message_of;

AttnShape shape_of(int head_dim, int head_dim_v, DType dtype = DType::kBFloat16) {
  return {256, 256, 4, 2, head_dim, head_dim_v, dtype};
}

TEST(Sm80Backend, RefusesShapesByName) {
  const Sm80Backend backend;
  EXPECT_NE(message_of([&] { backend.check(shape_of(264, 64)); }).find("head_dim=264"), std::string::npos);
  EXPECT_NE(message_of([&] { backend.check(shape_of(60, 64)); }).find("head_dim=60"), std::string::npos);
  EXPECT_NO_THROW(backend.check(shape_of(64, 64, DType::kFloat32)));
  EXPECT_NO_THROW(backend.check(shape_of(8, 256)));
}

TEST(Sm80Backend, CapsAreThoseOfDistributedKeysToo) {
  const AttnCaps caps = Sm80Backend().caps();
  EXPECT_EQ(caps.name, "sm80");
  EXPECT_EQ(caps.memory, MemoryKind::kDevice);
  EXPECT_TRUE(caps.delta && caps.head_masks && caps.padded_slots);
  EXPECT_EQ(caps.max_ready_flags, 64);
  EXPECT_EQ(caps.local_kv_halo, 127);
}

/// Lists of GPUs with less shared memory have the tiles of other kernels.
TEST(Sm80Backend, TilesAreThoseOfTheSharedMemory) {
  using sm80::SharedMemoryTier;
  const auto keys = [](int dim, SharedMemoryTier tier) { return sm80::kernel_table(dim, dim, tier).backward.block_m; };
  EXPECT_EQ(keys(128, SharedMemoryTier::kLarge), 128);
  EXPECT_EQ(keys(128, SharedMemoryTier::kSmall), 64);
  EXPECT_EQ(keys(64, SharedMemoryTier::kSmall), 128);
  EXPECT_EQ(sm80::kernel_table(256, 256, SharedMemoryTier::kSmall).forward[0].keys, 32);
  EXPECT_FALSE(sm80::has_small_forward(32, 32) || sm80::has_small_backward(64, 64));
  EXPECT_TRUE(sm80::has_small_backward(192, 128));  // by stages alone
}

TEST(Sm80Backend, BuildsAllPartsOfEachClass) {
  const Sm80Backend backend;
  const AttnSlice slice = AttnSlice::causal({0, 256}, {0, 256});
  const std::span<const AttnSlice> mask(&slice, 1);
  for (const sm80::ShapeClass& row : sm80::kShapeClasses) {
    MaskRequest request{.masks = {&mask, 1}, .shape = shape_of(row.head_dim, row.head_dim_v)};
    EXPECT_EQ(backend.build(request)->parts(), MaskParts(MaskPart::kForward));
    request.parts = kBackwardParts;
    EXPECT_EQ(backend.build(request)->parts(), kBackwardParts);
    // No mask leads to kernels that gather, which are not there.
    EXPECT_EQ(backend.backward_part({&mask, 1}, request.shape, {.plain = true}), MaskPart::kBackward);
    request.shape.dtype = DType::kFloat32;
    EXPECT_EQ(backend.build(request)->parts(), kBackwardParts);
  }
}

}  // namespace
}  // namespace tangram
