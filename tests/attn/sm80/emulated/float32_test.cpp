// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels of float32 tensors, run by the emulator, against float64.
#include "attn/sm80/emulated/backward_problem.hpp"
#include "attn/sm80/emulated/forward_problem.hpp"

namespace tangram::test::emulated_sm80 {
namespace {

template <int kDim, bool kSoftcapT = false>
struct Float32 {
  using Element = float;
  static constexpr int kDimQk = kDim, kDimV = kDim;
  static constexpr bool kSoftcap = kSoftcapT;
  static constexpr int kBlockM = sm80::float32::kForwardRows, kBlockN = sm80::float32::kForwardKeys;
  static constexpr int kKeys = sm80::float32::kBackwardKeys, kQueries = sm80::kStepQueries;
  static constexpr int kDqTileFloats = kQueries * kDim;
  static constexpr int kAccumTileFloats = sm80::float32::BackwardTraits<kDim>::kAccumTileFloats;
};

TEST(Sm80EmulatedFloat32, ForwardAgreesWithFloat64) {
  expect_cases_close<Float32<128>>(64, 64, 2, 6);
  expect_cases_close<Float32<128, true>>(72, 128, 3, 1);
  expect_cases_close<Float32<256>>(192, 136, 5, 1);
}
/// Few cases: the lanes of a warp add up each score, which takes the emulator long.
TEST(Sm80EmulatedFloat32, BackwardAgreesWithFloat64) {
  expect_backward_close<Float32<128>>(64, 40, 3, 1);
  expect_backward_close<Float32<128, true>>(128, 72, 5, 1);
  expect_backward_close<Float32<256>>(256, 192, 3, 1);
}
/// The sums of pieces have room: the table of kernels says how much.
TEST(Sm80EmulatedFloat32, TableHasRoomForPieces) {
  const auto floats = [](int dim) {
    const schedule::KernelTable table = sm80::float32::kernel_table(dim, 8);
    return table.backward.block_m * (table.backward_head_dim + table.backward_head_dim_v);
  };
  EXPECT_GE(floats(8), sm80::float32::BackwardTraits<128>::kAccumTileFloats);
  EXPECT_GE(floats(136), sm80::float32::BackwardTraits<256>::kAccumTileFloats);
}

}  // namespace
}  // namespace tangram::test::emulated_sm80
