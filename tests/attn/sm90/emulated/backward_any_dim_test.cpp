// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward kernels for any head dimensions up to 128, run by the emulator, against float64.
#include "attn/sm90/emulated/backward_problem.hpp"

namespace tangram::test::emulated_backward {
namespace {

TEST(Sm90EmulatedBackward, AgreesWithFloat64InClass32) {
  expect_any_dim_close<32, 32>(32, 32);
  expect_any_dim_close<32, 32>(8, 8);
  expect_any_dim_close<32, 32>(24, 16);
}
TEST(Sm90EmulatedBackward, AgreesWithFloat64InClass64) {
  expect_any_dim_close<64, 64>(40, 40);
  expect_any_dim_close<64, 64>(64, 24);
}
TEST(Sm90EmulatedBackward, AgreesWithFloat64InClass96) {
  expect_any_dim_close<96, 96>(96, 96);
  expect_any_dim_close<96, 96>(72, 72);
  expect_any_dim_close<96, 96>(96, 64);
}
TEST(Sm90EmulatedBackward, AgreesWithFloat64InClass128) {
  expect_any_dim_close<128, 128>(112, 112);
  expect_any_dim_close<128, 128>(120, 72);
  expect_any_dim_close<128, 128>(128, 64);
}

// Dimensions in turn: those of the class, and smaller ones.
TEST(Sm90EmulatedBackward, AwaitedKeysRowTablesAndOtherOptionsInClass32) {
  expect_options_close<32, 32>({{32, 32}, {24, 16}});
}
TEST(Sm90EmulatedBackward, AwaitedKeysRowTablesAndOtherOptionsInClass64) {
  expect_options_close<64, 64>({{64, 40}, {56, 56}});
}
TEST(Sm90EmulatedBackward, AwaitedKeysRowTablesAndOtherOptionsInClass96) {
  expect_options_close<96, 96>({{80, 80}, {96, 96}, {72, 40}});
}
TEST(Sm90EmulatedBackward, AwaitedKeysRowTablesAndOtherOptionsInClass128) {
  expect_options_close<128, 128>({{112, 112}, {128, 64}});
}

}  // namespace
}  // namespace tangram::test::emulated_backward
