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
  emulated::in_orders(
      first, cases(), [](const Case& c, const Order& order) { expect_close<Traits>(c, kHeadDim, kHeadDim, order); }, 2);
}

TEST(Sm90EmulatedForward, AgreesWithFloat64HeadDim64) { expect_all_close<64, false>(0); }
TEST(Sm90EmulatedForward, AgreesWithFloat64HeadDim128) { expect_all_close<128, false>(1); }
TEST(Sm90EmulatedForward, AgreesWithFloat64WithSoftcapHeadDim64) { expect_all_close<64, true>(2); }
TEST(Sm90EmulatedForward, AgreesWithFloat64WithSoftcapHeadDim128) { expect_all_close<128, true>(0); }

/// Whole tiles and parts have kernels of their own; softcap in turn.
template <int kHeadDim>
void expect_options_close() {
  constexpr int kKeys = sm90::forward_tile_keys(kHeadDim, kHeadDim, false);
  constexpr int kKeysSoftcap = sm90::forward_tile_keys(kHeadDim, kHeadDim, true);
  int index = 0;
  for (const Case& c : option_cases()) {
    const Order order = emulated::order(index);
    if (c.part_steps > 0) {
      expect_close<sm90::ForwardTraits<__nv_bfloat16, kHeadDim, kKeys, false, true>>(c, kHeadDim, kHeadDim, order);
    } else if (index % 2 == 0) {
      expect_close<sm90::ForwardTraits<__nv_bfloat16, kHeadDim, kKeys, false>>(c, kHeadDim, kHeadDim, order);
    } else {
      expect_close<sm90::ForwardTraits<__nv_bfloat16, kHeadDim, kKeysSoftcap, true>>(c, kHeadDim, kHeadDim, order);
    }
    ++index;
  }
}
TEST(Sm90EmulatedForward, AwaitedKeysPartsAndOtherOptionsHeadDim64) { expect_options_close<64>(); }
TEST(Sm90EmulatedForward, AwaitedKeysPartsAndOtherOptionsHeadDim128) { expect_options_close<128>(); }

/// Tiles of any number of heads: their warpgroups have no whole query rows, and of 5 and 7 heads the last rows of a
/// tile are unused.
std::vector<Case> any_pack_cases() {
  return {
      {"five heads", shape_of(150, 150, 10, 2), {AttnSlice::causal({0, 150}, {0, 150})}},
      {.name = "six heads, a window, sinks",
       .shape = shape_of(100, 200, 6, 1),
       .slices = {{{0, 100}, {0, 200}, -20, 100}},
       .out = DType::kFloat32,
       .sinks = 2,
       .strided = true},
      {.name = "seven heads in parts",
       .shape = shape_of(60, 700, 7, 1),
       .slices = {AttnSlice::causal({2, 60}, {0, 700})},
       .strided = true,
       .part_steps = 2},
      {.name = "three heads, documents",
       .shape = shape_of(700, 700, 6, 2),
       .slices = documents(),
       .max_logits = true,
       .late = LateKind::kCome},
      {.name = "twelve heads, short rows", .shape = shape_of(70, 130, 12, 1), .slices = short_slices()},
  };
}
TEST(Sm90EmulatedForward, PacksAnyNumberOfHeads) {
  constexpr int kDim = 64, kKeys = sm90::forward_tile_keys(kDim, kDim, false);
  constexpr int kKeysSoftcap = sm90::forward_tile_keys(kDim, kDim, true);
  int index = 0;
  for (const Case& c : any_pack_cases()) {
    const Order order = emulated::order(index++);
    using Element = __nv_bfloat16;
    if (c.part_steps > 0) {
      expect_close<sm90::AnyPackTraits<sm90::ForwardTraits<Element, kDim, kKeys, false, true>>>(c, kDim, kDim, order);
    } else {
      expect_close<sm90::AnyPackTraits<sm90::ForwardTraits<Element, kDim, kKeys, false>>>(c, kDim, kDim, order);
    }
    if (c.max_logits || c.part_steps > 0) continue;
    expect_close<sm90::AnyPackTraits<sm90::ForwardTraits<Element, kDim, kKeysSoftcap, true>>>(c, kDim, kDim, order);
  }
}

/// Blocks of `block` rows and keys from key `shift` on, three of five of which are hidden.
std::vector<AttnSlice> blocks(int64_t rows, int64_t keys, int64_t block, int64_t shift) {
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q * block < rows; ++q) {
    for (int64_t k = 0; shift + (k + 1) * block <= keys; ++k) {
      const Range seen{shift + k * block, shift + (k + 1) * block};
      if ((q * 7 + k * 3) % 5 < 2)
        slices.push_back(AttnSlice::full({q * block, std::min((q + 1) * block, rows)}, seen));
    }
  }
  return slices;
}

std::vector<Case> block_cases() {
  std::vector<AttnSlice> with_window = blocks(384, 700, 64, 3);
  with_window.push_back({{0, 384}, {703, 1100}, -1100, 720});
  std::vector<AttnSlice> few{AttnSlice::full({0, 192}, {32, 48}), AttnSlice::full({0, 192}, {80, 112})};
  std::vector<AttnSlice> all;
  for (int64_t k = 0; k < 48; k += 16) all.push_back(AttnSlice::full({0, 192}, {k, k + 16}));
  return {
      {"blocks of 64", shape_of(384, 1024, 8, 1), blocks(384, 1024, 64, 0)},
      {"blocks of 16", shape_of(48, 700, 16, 2), blocks(48, 700, 16, 5)},
      {"blocks and a window", shape_of(384, 1100, 8, 1), with_window},
      {"less than a step", shape_of(200, 400, 2, 1), few},
      {"all keys, less than a step", shape_of(192, 48, 2, 1), all},
      {.name = "late blocks",
       .shape = shape_of(384, 1024, 8, 1),
       .slices = blocks(384, 1024, 64, 0),
       .late = LateKind::kCome},
      {.name = "blocks elsewhere",
       .shape = shape_of(384, 1000, 8, 1),
       .slices = blocks(384, 1000, 64, 5),
       .elsewhere = true},
  };
}

template <int kHeadDim, bool kSoftcap>
void expect_blocks_close(int first) {
  emulated::in_orders(
      first, block_cases(),
      [](const Case& c, const Order& order) {
        using Traits = sm90::GatheredTraitsOf<__nv_bfloat16, kHeadDim, kSoftcap>;
        const int64_t tile = Traits::kBlockM / packed_heads<Traits>(c.shape);
        if (c.slices[0].q_range.size() % tile != 0) return;  // rows of a tile do not see the same
        expect_close<Traits>(c, kHeadDim, kHeadDim, order);
      },
      2);
}

/// Runs of a list that is not gathered, which come one after the other while others are loaded.
TEST(Sm90EmulatedForward, FetchesRunsHeadDim128) {
  using Traits = sm90::FetchingTraits<sm90::ForwardTraits<__nv_bfloat16, 128, 128, false>>;
  const auto close = [](const Case& c, const Order& order) { expect_close<Traits>(c, 128, 128, order); };
  emulated::in_orders(1, cases(), close, 4);
  emulated::in_orders(0, block_cases(), close, 2);
}

/// Work tiles that begin with the blocks, whose last ones have rows for two or one of three warpgroups.
template <bool kSoftcap>
void expect_aligned_close(int first) {
  emulated::in_orders(
      first, block_cases(),
      [](const Case& c, const Order& order) {
        using Traits = sm90::AlignedTraitsOf<__nv_bfloat16, 64, kSoftcap>;
        Case aligned = c;
        aligned.anew_every = static_cast<int>(c.slices[0].q_range.size());
        aligned.max_logits = !kSoftcap;
        aligned.sinks = 1;
        expect_close<Traits>(aligned, 64, 64, order);
      },
      2);
}
TEST(Sm90EmulatedForward, WorkTilesThatBeginWithBlocks) { expect_aligned_close<false>(0); }
TEST(Sm90EmulatedForward, WorkTilesThatBeginWithBlocksWithSoftcap) { expect_aligned_close<true>(1); }

TEST(Sm90EmulatedForward, GathersBlocksHeadDim64) { expect_blocks_close<64, false>(1); }
TEST(Sm90EmulatedForward, GathersBlocksWithSoftcapHeadDim64) { expect_blocks_close<64, true>(0); }
TEST(Sm90EmulatedForward, GathersBlocksHeadDim128) { expect_blocks_close<128, false>(0); }
TEST(Sm90EmulatedForward, GathersBlocksWithSoftcapHeadDim128) { expect_blocks_close<128, true>(3); }

}  // namespace
}  // namespace tangram::test::emulated_forward
