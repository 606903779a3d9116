// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The backward kernels for exactly the head dimension of a class, run by the emulator, against float64.
#include "attn/sm90/emulated/backward_problem.hpp"

namespace tangram::test::emulated_backward {
namespace {

template <int kHeadDim, bool kSoftcap>
void expect_all_close(int first) {
  using Free = sm90::backward::Traits<__nv_bfloat16, kHeadDim, kSoftcap, false>;
  using Deterministic = sm90::backward::Traits<__nv_bfloat16, kHeadDim, kSoftcap, true>;
  emulated::in_orders(
      first, cases(),
      [](const Case& c, const Order& order) { expect_close<Free, Deterministic>(c, kHeadDim, kHeadDim, order); }, 4);
}

// Each case by one of four.
TEST(Sm90EmulatedBackward, AgreesWithFloat64HeadDim64) { expect_all_close<64, false>(0); }
TEST(Sm90EmulatedBackward, AgreesWithFloat64HeadDim128) { expect_all_close<128, false>(1); }
TEST(Sm90EmulatedBackward, AgreesWithFloat64WithSoftcapHeadDim64) { expect_all_close<64, true>(3); }
TEST(Sm90EmulatedBackward, AgreesWithFloat64WithSoftcapHeadDim128) { expect_all_close<128, true>(2); }

template <int kHeadDim>
void expect_options_close() {
  int index = kHeadDim / 64;
  for (const Case& c : option_cases()) {
    using Free = sm90::backward::Traits<__nv_bfloat16, kHeadDim, false, false>;
    using Deterministic = sm90::backward::Traits<__nv_bfloat16, kHeadDim, false, true>;
    const Modes in_turn = index % 2 == 0 ? Modes::kFree : Modes::kDeterministic;
    expect_close<Free, Deterministic>(c, kHeadDim, kHeadDim, emulated::order(index++),
                                      support::is_long_run() ? Modes::kBoth : in_turn);
  }
}
TEST(Sm90EmulatedBackward, AwaitedKeysRowTablesAndOtherOptionsHeadDim64) { expect_options_close<64>(); }
TEST(Sm90EmulatedBackward, AwaitedKeysRowTablesAndOtherOptionsHeadDim128) { expect_options_close<128>(); }

// Turns of lists that a GPU builds follow its own schedule: packs in pieces of unequal lengths, one nested group in
// sections, blocks that share queries.
TEST(Sm90EmulatedBackward, DeterministicCallsScheduledByRule) {
  using Traits = sm90::backward::Traits<__nv_bfloat16, 64, false, true>;
  std::vector<AttnSlice> blocks;
  for (int64_t q = 0; q < 4; ++q) {
    for (int64_t k = 0; k < 4; ++k) {
      if ((q * 5 + k * 3) % 4 != 1) blocks.push_back(AttnSlice::full({q * 96, q * 96 + 96}, {k * 96, k * 96 + 96}));
    }
  }
  std::vector<Case> cases{{"documents", shape_of(700, 700, 4, 1), documents(), 4, 4},
                          {"causal", shape_of(400, 400, 8, 2), {AttnSlice::causal({0, 400}, {0, 400})}, 3, 4},
                          {"blocks", shape_of(384, 384, 4, 1), blocks, 3, 4}};
  int index = 1;  // in images and apart from them
  for (Case& c : cases) {
    c.by_rule = true;
    expect_close<Traits, Traits>(c, 64, 64, emulated::order(index++), Modes::kDeterministic);
  }
}

// The main kernel is not told which queries see something; those of two blocks do not, and hold NaN.
TEST(Sm90EmulatedBackward, BlocksThatWholeTilesSee) {
  std::vector<AttnSlice> blocks;
  for (const auto& [q, k] : {std::pair{0, 1}, {0, 3}, {2, 0}, {2, 1}, {4, 3}}) {
    blocks.push_back(AttnSlice::full({q * 128, q * 128 + 128}, {k * 128, k * 128 + 128}));
  }
  const Case c{"blocks", shape_of(640, 512, 4, 2), blocks, 3, 4};
  using Traits = sm90::backward::Traits<__nv_bfloat16, 128, false, false>;
  using Deterministic = sm90::backward::Traits<__nv_bfloat16, 128, false, true>;
  expect_close<Traits, Deterministic>(c, 128, 128, emulated::order(1));
}

// Many calls with a MaskBuffer are like this: their grid does not follow the mask. A CTA that stopped at once read what
// its second step adds to before that was written.
TEST(Sm90EmulatedBackward, CtasWithoutWorkTilesStop) {
  using Traits = sm90::backward::Traits<__nv_bfloat16, 64, false, true>;
  const Case c{"one item", shape_of(64, 128, 1, 1), {AttnSlice::full({0, 64}, {0, 128})}, 4, 132};
  for (int i = 0; i < 40; ++i) expect_close<Traits, Traits>(c, 64, 64, emulated::order(i));
}

}  // namespace
}  // namespace tangram::test::emulated_backward
