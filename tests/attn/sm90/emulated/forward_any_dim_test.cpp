// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward kernel for any head dimensions, run by the emulator, against float64.
#include "attn/sm90/emulated/forward_problem.hpp"

namespace tangram::test::emulated_forward {
namespace {

TEST(Sm90EmulatedForward, AgreesWithFloat64InClass32) {
  expect_any_dim_close<32, 32>(32, 32);
  expect_any_dim_close<32, 32>(8, 8);
  expect_any_dim_close<32, 32>(24, 16);
}
TEST(Sm90EmulatedForward, AgreesWithFloat64InClass64) {
  expect_any_dim_close<64, 64>(40, 40);
  expect_any_dim_close<64, 64>(64, 24);
}
TEST(Sm90EmulatedForward, AgreesWithFloat64InClass96) {
  expect_any_dim_close<96, 96>(96, 96);
  expect_any_dim_close<96, 96>(72, 72);
  expect_any_dim_close<96, 96>(96, 64);
}
TEST(Sm90EmulatedForward, AgreesWithFloat64InClass128) {
  expect_any_dim_close<128, 128>(112, 112);
  expect_any_dim_close<128, 128>(120, 72);
  expect_any_dim_close<128, 128>(128, 64);
}
TEST(Sm90EmulatedForward, AgreesWithFloat64InClass192And128) {
  expect_any_dim_close<192, 128>(192, 128);
  expect_any_dim_close<192, 128>(136, 104);
  expect_any_dim_close<192, 128>(160, 40);
}
TEST(Sm90EmulatedForward, AgreesWithFloat64InClass192And128OfManyWorkTiles) {
  expect_any_dim_close<192, 128, sm90::ManyForwardTraits>(192, 128);
  expect_any_dim_close<192, 128, sm90::ManyForwardTraits>(160, 40);
}
TEST(Sm90EmulatedForward, AgreesWithFloat64InClass256) {
  expect_any_dim_close<256, 256>(256, 256);
  expect_any_dim_close<256, 256>(200, 192);
}

// Dimensions in turn: those of the class, and smaller ones.
TEST(Sm90EmulatedForward, AwaitedKeysPartsAndOtherOptionsInClass32) {
  expect_options_close<32, 32>({{32, 32}, {24, 16}});
}
TEST(Sm90EmulatedForward, AwaitedKeysPartsAndOtherOptionsInClass64) {
  expect_options_close<64, 64>({{64, 40}, {56, 56}});
}
TEST(Sm90EmulatedForward, AwaitedKeysPartsAndOtherOptionsInClass96) {
  expect_options_close<96, 96>({{80, 80}, {96, 96}, {72, 40}});
}
TEST(Sm90EmulatedForward, AwaitedKeysPartsAndOtherOptionsInClass128) {
  expect_options_close<128, 128>({{112, 112}, {128, 64}});
}
TEST(Sm90EmulatedForward, AwaitedKeysPartsAndOtherOptionsInClass192And128) {
  expect_options_close<192, 128>({{192, 128}, {136, 104}});
}
TEST(Sm90EmulatedForward, AwaitedKeysPartsAndOtherOptionsInClass256) {
  expect_options_close<256, 256>({{256, 256}, {200, 192}});
}

}  // namespace
}  // namespace tangram::test::emulated_forward
