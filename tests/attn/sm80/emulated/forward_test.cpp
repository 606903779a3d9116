// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward kernel of every class of head dimensions, run by the emulator, against float64.
#include "attn/sm80/emulated/forward_problem.hpp"

namespace tangram::test::emulated_sm80 {
namespace {

template <typename Element, int kDimQk, int kDimV, bool kSoftcap>
using Traits = sm80::ForwardTraits<Element, kDimQk, kDimV, kSoftcap>;

TEST(Sm80EmulatedForward, AgreesWithFloat64HeadDim64) {
  expect_cases_close<Traits<__nv_bfloat16, 64, 64, false>>(64, 64, 0, 9);
}
TEST(Sm80EmulatedForward, AgreesWithFloat64HeadDim128) {
  expect_cases_close<Traits<__nv_bfloat16, 128, 128, false>>(128, 128, 0, 7);
}
TEST(Sm80EmulatedForward, AgreesWithFloat64OtherClasses) {
  expect_cases_close<Traits<__nv_bfloat16, 32, 32, false>>(32, 32, 0, 1);
  expect_cases_close<Traits<__nv_bfloat16, 96, 96, false>>(96, 96, 2, 1);
  expect_cases_close<Traits<__nv_bfloat16, 192, 128, false>>(192, 128, 3, 1);
  expect_cases_close<Traits<__nv_bfloat16, 256, 256, false>>(256, 256, 4, 3);
}
/// Tiles of GPUs with 99 KB of shared memory a block, where they are others.
TEST(Sm80EmulatedForward, AgreesWithFloat64InLittleSharedMemory) {
  constexpr auto kSmall = sm80::SharedMemoryTier::kSmall;
  expect_cases_close<sm80::ForwardTraits<__nv_bfloat16, 128, 128, false, kSmall>>(128, 128, 0, 2);
  expect_cases_close<sm80::ForwardTraits<__nv_bfloat16, 256, 256, false, kSmall>>(256, 256, 3, 1);
}
TEST(Sm80EmulatedForward, FillsUpDimensionsBelowTheClass) {
  expect_cases_close<Traits<__nv_bfloat16, 32, 32, false>>(24, 8, 4, 1);
  expect_cases_close<Traits<__nv_bfloat16, 96, 96, false>>(72, 96, 1, 1);
  expect_cases_close<Traits<__nv_bfloat16, 128, 128, false>>(40, 104, 3, 1);
  expect_cases_close<Traits<__nv_bfloat16, 256, 256, false>>(200, 16, 0, 1);
}
TEST(Sm80EmulatedForward, Softcap) {
  expect_cases_close<Traits<__nv_bfloat16, 64, 64, true>>(64, 64, 2, 2);
  expect_cases_close<Traits<__nv_bfloat16, 128, 128, true>>(128, 128, 0, 1);
}
TEST(Sm80EmulatedForward, Float16) {
  expect_cases_close<Traits<__half, 64, 64, false>>(64, 64, 2, 1);
  expect_cases_close<Traits<__half, 128, 128, true>>(128, 128, 4, 1);
}

}  // namespace
}  // namespace tangram::test::emulated_sm80
