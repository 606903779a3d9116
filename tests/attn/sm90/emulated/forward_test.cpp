// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forward kernel for exactly the head dimension of a class, run by the emulator, against float64.
#include "attn/sm90/emulated/forward_problem.hpp"

namespace tangram::test::emulated_forward {
namespace {

template <int kHeadDim, bool kSoftcap>
void expect_all_close(int first) {
  constexpr int kKeys = sm90::forward_tile_keys(kHeadDim, kHeadDim, kSoftcap);
  using Traits = sm90::ForwardTraits<__nv_bfloat16, kHeadDim, kKeys, kSoftcap>;
  emulated::in_orders(first, cases(),
                      [](const Case& c, const Order& order) { expect_close<Traits>(c, kHeadDim, kHeadDim, order); });
}

TEST(Sm90EmulatedForward, AgreesWithFloat64HeadDim64) { expect_all_close<64, false>(0); }
TEST(Sm90EmulatedForward, AgreesWithFloat64HeadDim128) { expect_all_close<128, false>(1); }
TEST(Sm90EmulatedForward, AgreesWithFloat64WithSoftcapHeadDim64) { expect_all_close<64, true>(2); }
TEST(Sm90EmulatedForward, AgreesWithFloat64WithSoftcapHeadDim128) { expect_all_close<128, true>(0); }

}  // namespace
}  // namespace tangram::test::emulated_forward
