// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward kernels of every class of head dimensions, run by the emulator, against float64.
#include "attn/sm80/emulated/backward_problem.hpp"

namespace tangram::test::emulated_sm80 {
namespace {

template <typename Element, int kDimQk, int kDimV, bool kSoftcap>
using Traits = sm80::backward::Traits<Element, kDimQk, kDimV, kSoftcap>;

TEST(Sm80EmulatedBackward, AgreesWithFloat64HeadDim64) {
  expect_backward_close<Traits<__nv_bfloat16, 64, 64, false>>(64, 64, 0, 8);
}
TEST(Sm80EmulatedBackward, AgreesWithFloat64HeadDim128) {
  expect_backward_close<Traits<__nv_bfloat16, 128, 128, false>>(128, 128, 0, 6);
}
TEST(Sm80EmulatedBackward, AgreesWithFloat64OtherClasses) {
  expect_backward_close<Traits<__nv_bfloat16, 32, 32, false>>(32, 32, 0, 2);
  expect_backward_close<Traits<__nv_bfloat16, 96, 96, false>>(96, 96, 3, 1);
  expect_backward_close<Traits<__nv_bfloat16, 192, 128, false>>(192, 128, 0, 2);
  expect_backward_close<Traits<__nv_bfloat16, 256, 256, false>>(256, 256, 1, 2);
}
/// Tiles of GPUs with 99 KB of shared memory a block, where they are others.
TEST(Sm80EmulatedBackward, AgreesWithFloat64InLittleSharedMemory) {
  constexpr auto kSmall = sm80::SharedMemoryTier::kSmall;
  expect_backward_close<sm80::backward::Traits<__nv_bfloat16, 128, 128, false, kSmall>>(128, 128, 0, 1);
  expect_backward_close<sm80::backward::Traits<__nv_bfloat16, 192, 128, false, kSmall>>(192, 128, 1, 1);
  expect_backward_close<sm80::backward::Traits<__nv_bfloat16, 256, 256, false, kSmall>>(256, 256, 0, 2);
}
TEST(Sm80EmulatedBackward, FillsUpDimensionsBelowTheClass) {
  expect_backward_close<Traits<__nv_bfloat16, 32, 32, false>>(24, 8, 3, 1);
  expect_backward_close<Traits<__nv_bfloat16, 128, 128, false>>(40, 104, 1, 1);
  expect_backward_close<Traits<__nv_bfloat16, 256, 256, false>>(200, 16, 0, 1);
}
TEST(Sm80EmulatedBackward, Softcap) {
  expect_backward_close<Traits<__nv_bfloat16, 64, 64, true>>(64, 64, 1, 1);
  expect_backward_close<Traits<__nv_bfloat16, 128, 128, true>>(128, 128, 0, 1);
}
TEST(Sm80EmulatedBackward, Float16) {
  expect_backward_close<Traits<__half, 64, 64, false>>(64, 64, 0, 1);
  expect_backward_close<Traits<__half, 128, 128, true>>(128, 128, 3, 1);
}

}  // namespace
}  // namespace tangram::test::emulated_sm80
