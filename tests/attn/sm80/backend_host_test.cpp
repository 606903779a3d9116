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
  EXPECT_NE(message_of([&] { backend.check(shape_of(64, 64, DType::kFloat32)); }).find("float32"), std::string::npos);
  EXPECT_NO_THROW(backend.check(shape_of(8, 256)));
}

TEST(Sm80Backend, RefusesWhatItsCapsLack) {
  const Sm80Backend backend;
  const AttnCaps caps = backend.caps();
  EXPECT_EQ(caps.name, "sm80");
  EXPECT_EQ(caps.memory, MemoryKind::kDevice);
  EXPECT_TRUE(caps.delta);
  EXPECT_FALSE(caps.head_masks || caps.padded_slots);
  EXPECT_EQ(caps.max_ready_flags, 0);
  EXPECT_LT(caps.local_kv_halo, 0);

  const AttnSlice slice = AttnSlice::full({0, 256}, {0, 256});
  const std::span<const AttnSlice> mask(&slice, 1);
  const std::vector<std::span<const AttnSlice>> two{mask, mask};
  MaskRequest request{.masks = two, .shape = shape_of(64, 64)};
  EXPECT_THROW(backend.build(request), InvalidArgument);
  const KeyReadyFlag flag{{0, 128}, 0};
  request.masks = {&mask, 1};
  request.ready_flags = {&flag, 1};
  EXPECT_THROW(backend.build(request), InvalidArgument);
  const MaskCapacity capacity;
  EXPECT_THROW(backend.make_slot(shape_of(64, 64), &capacity), InvalidArgument);
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
  }
}

}  // namespace
}  // namespace tangram
