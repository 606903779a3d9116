// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// FlexAttention with a mask for each group of heads: on the CPU against float64, and what backends are given.

#include <gtest/gtest.h>

#include <vector>

#include "attn/cpu/random_heads.hpp"
#include "support/relative_error.hpp"
#include "tangram/backends.hpp"
#include "tangram/error.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

HeadConfig heads_of(const AttnShape& s) { return {s.num_heads_q, s.num_heads_kv, s.head_dim, s.head_dim_v, s.dtype}; }

std::vector<Mask> masks_of(const test::RandomHeads& r) {
  const AttnShape& s = r.all.config.shape;
  std::vector<Mask> masks;
  for (const test::RandomAttention& group : r.groups) masks.emplace_back(s.seqlen_q, s.seqlen_k, group.slices);
  return masks;
}

TEST(FlexAttentionHeadMasks, OnTheCpuAgreeWithFloat64) {
  const auto backend = make_attn_backend("cpu");
  int turn = 0;
  for (const auto& [heads_q, heads_kv, num_masks] : {std::array{4, 4, 4}, {8, 2, 2}, {12, 4, 2}}) {
    for (const SinkLayout layout : {SinkLayout::kSh, SinkLayout::kSsh}) {
      test::RandomConfig config;
      config.shape = {60, 80, heads_q, heads_kv, 16, 8, DType::kFloat32};
      config.seqlen_sink = turn % 3;
      config.sink_layout = layout;
      config.strided = ++turn % 2 == 0;
      test::RandomHeads r =
          test::make_random_heads(config, test::random_blocks(config.shape, num_masks, 8, 16, 0.4, 3), 2);
      FlexAttention attention(masks_of(r), heads_of(config.shape), *backend);
      EXPECT_EQ(attention.shape(), config.shape);
      attention.forward(r.all.forward_args());
      attention.backward(r.all.backward_args());
      const auto check = [&](const char* name, const std::vector<double>& got, const std::vector<double>& wanted) {
        const test::Distance d = test::distance(got, wanted);
        EXPECT_LE(d.error, 1e-5 * d.norm + 1e-5) << name;  // float32: sums of at most 80 products
      };
      test::RandomAttention& a = r.all;
      check("out", test::values_of(a.out_view(), a.out), r.expected.out);
      check("lse", {a.lse.begin(), a.lse.end()}, r.expected.lse);
      check("max_logits", {a.max_logits.begin(), a.max_logits.end()}, r.expected.max_logits);
      check("dq", test::values_of(a.dq_view(), a.dq), r.expected.dq);
      check("dk", test::values_of(a.dk_view(), a.dk), r.expected.dk);
      check("dv", test::values_of(a.dv_view(), a.dv), r.expected.dv);
      check("dsink", {a.dsink.begin(), a.dsink.end()}, r.expected.dsink);
    }
  }
}

// Continuing from an earlier part needs its lse, of which each group has a copy.
TEST(FlexAttentionHeadMasks, TwoPartsAccumulate) {
  const auto backend = make_attn_backend("cpu");
  test::RandomConfig config;
  config.shape = {40, 40, 4, 2, 16, 16, DType::kFloat32};
  const Mask left(40, 40, {AttnSlice::full({0, 40}, {0, 20})}), right(40, 40, {AttnSlice::full({0, 40}, {20, 40})});
  test::RandomAttention whole = test::make_random(config, {AttnSlice::full({0, 40}, {0, 40})}, 1);
  test::RandomAttention parts = test::make_random(config, {AttnSlice::full({0, 40}, {0, 40})}, 1);
  FlexAttention(full_mask(40, 40), heads_of(config.shape), *backend).forward(whole.forward_args());
  const Mask first[] = {left, right}, second[] = {right, left};
  AttnForwardArgs args = parts.forward_args();
  FlexAttention(first, heads_of(config.shape), *backend).forward(args);
  args.accumulate = true;
  FlexAttention(second, heads_of(config.shape), *backend).forward(args);
  EXPECT_LT(support::relative_error(parts.out, whole.out), 1e-6);
  EXPECT_LT(support::relative_error(parts.lse, whole.lse), 1e-6);
}

/// Takes head masks, and notes what it is asked to build.
class HeadMaskBackend final : public AttnBackend {
 public:
  AttnCaps caps() const override { return {.name = "noting", .memory = MemoryKind::kDevice, .head_masks = true}; }
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override {
    num_masks = request.masks.size();
    heads = request.shape.num_heads_kv;
    built.push_back(request.parts);
    return std::make_unique<MaskMetadata>(request.parts);
  }
  std::unique_ptr<MaskSlot> make_slot(const AttnShape&, const MaskCapacity*) const override {
    return std::make_unique<Slot>();
  }
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void*) const override {
    static_cast<Slot&>(slot).add(metadata->parts());
  }
  void forward(MaskSlot&, const AttnForwardArgs&, void*) const override { ++num_calls; }
  void backward(MaskSlot&, const AttnBackwardArgs&, void*) const override { ++num_calls; }

  mutable size_t num_masks = 0;
  mutable int heads = 0, num_calls = 0;
  mutable std::vector<MaskParts> built;

 private:
  struct Slot final : MaskSlot {
    void add(MaskParts parts) { add_parts(parts); }
  };
};

TEST(FlexAttentionHeadMasks, AreOneCallWhereTheBackendTakesThem) {
  const HeadMaskBackend backend;
  const Mask masks[] = {causal_mask(40, 40), full_mask(40, 40)};
  FlexAttention attention(masks, {8, 4, 16, 16, DType::kBFloat16}, backend);
  EXPECT_EQ(backend.num_masks, 2u);
  EXPECT_EQ(backend.heads, 4);
  EXPECT_EQ(backend.built, (std::vector<MaskParts>{MaskPart::kForward}));
  attention.forward({});
  attention.backward({});
  attention.backward({});
  attention.backward({.options = {.deterministic = true}});
  EXPECT_EQ(backend.num_calls, 4);
  EXPECT_EQ(backend.num_masks, 2u);
  EXPECT_EQ(backend.built,
            (std::vector<MaskParts>{MaskPart::kForward, MaskPart::kBackward, MaskPart::kBackwardOrdered}));
  FlexAttention(std::span(masks, 1), {8, 4, 16, 16, DType::kBFloat16}, backend);
  EXPECT_EQ(backend.num_masks, 1u);
}

TEST(FlexAttentionHeadMasks, WhatFitsNothingIsRefused) {
  const auto backend = make_attn_backend("cpu");
  const HeadConfig heads{8, 4, 16, 16, DType::kFloat32};
  const std::vector<Mask> three(3, causal_mask(40, 40)), none;
  EXPECT_THROW(FlexAttention(three, heads, *backend), InvalidArgument);
  EXPECT_THROW(FlexAttention(none, heads, *backend), InvalidArgument);
  const Mask unlike[] = {causal_mask(40, 40), causal_mask(41, 41)};
  EXPECT_THROW(FlexAttention(unlike, heads, *backend), InvalidArgument);
}

}  // namespace
}  // namespace tangram
