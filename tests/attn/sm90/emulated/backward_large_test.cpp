// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward kernels that share dk, dq and dv between them, run by the emulator, against float64.
#include "attn/sm90/emulated/backward_problem.hpp"

namespace tangram::test::emulated_backward {
namespace {

TEST(Sm90EmulatedBackward, AgreesWithFloat64InClass192And128) {
  expect_any_dim_close<192, 128>(192, 128);
  expect_any_dim_close<192, 128>(136, 104);
  expect_any_dim_close<192, 128>(160, 40);
}
TEST(Sm90EmulatedBackward, AgreesWithFloat64InClass256) {
  expect_any_dim_close<256, 256>(256, 256);
  expect_any_dim_close<256, 256>(200, 192);
}

// Dimensions in turn: those of the class, and smaller ones.
TEST(Sm90EmulatedBackward, AwaitedKeysRowTablesAndOtherOptionsInClass192And128) {
  expect_options_close<192, 128>({{192, 128}, {136, 104}});
}
TEST(Sm90EmulatedBackward, AwaitedKeysRowTablesAndOtherOptionsInClass256) {
  expect_options_close<256, 256>({{256, 256}, {200, 192}});
}

}  // namespace
}  // namespace tangram::test::emulated_backward
