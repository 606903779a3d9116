// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mask_slot.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "attn/cpu/random_attention.hpp"
#include "tangram/backends.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

test::RandomConfig config_of(int heads_q = 4, int heads_kv = 2) {
  test::RandomConfig config;
  config.shape = {40, 50, heads_q, heads_kv, 16, 8, DType::kFloat32};
  return config;
}

TEST(MaskParts, AreASet) {
  const MaskParts both = MaskPart::kBackward | MaskPart::kBackwardOrdered;
  EXPECT_EQ(both, kBackwardParts);
  EXPECT_TRUE(both.has(MaskPart::kBackward));
  EXPECT_FALSE(both.has(MaskPart::kForward));
  EXPECT_TRUE((both | MaskPart::kForward).has_all(both));
  EXPECT_FALSE(MaskParts(MaskPart::kBackward).has_all(both));
  EXPECT_TRUE(MaskParts().empty());
}

TEST(CallOptions, OfPlainCallsNothingElseIsAskedFor) {
  AttnBackwardArgs plain;
  EXPECT_TRUE(call_options(plain).plain);
  EXPECT_FALSE(call_options(plain).deterministic);
  float memory[4] = {};
  const uint32_t place = 0;
  const KvReadyFlags flags;
  const std::vector<std::function<void(AttnBackwardArgs&)>> changes = {
      [](auto& a) { a.options.softcap = 2; },
      [](auto& a) { a.options.softmax_scale = 1e-31f; },  // lse / softmax_scale would overflow
      [&](auto& a) { a.dsink = memory; },
      [](auto& a) { a.accumulate_dq = true; },
      [](auto& a) { a.accumulate_dkv = true; },
      [&](auto& a) { a.places.of_key = &place; },
      [&](auto& a) { a.k_local.data = memory; },
      [&](auto& a) { a.v_local.data = memory; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    AttnBackwardArgs args;
    changes[i](args);
    EXPECT_FALSE(call_options(args).plain) << i;
  }
  plain.options.deterministic = true;
  plain.ready_flags = &flags;
  EXPECT_TRUE(call_options(plain).deterministic);
  EXPECT_TRUE(call_options(plain).awaits_keys);
}

class HostSlots : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<AttnBackend> backend_ = make_attn_backend(GetParam(), {.num_threads = 1});
};

TEST_P(HostSlots, OneInstallIsForCallsOfBothPasses) {
  test::RandomAttention r = test::make_random(config_of(), {AttnSlice::causal({0, 40}, {0, 50})}, 1);
  const auto slot = backend_->make_slot(r.config.shape);
  EXPECT_TRUE(slot->parts().empty());
  const std::span<const AttnSlice> slices = r.slices;
  backend_->install(*slot, backend_->build({.masks = {&slices, 1}, .shape = r.config.shape}));
  EXPECT_TRUE(slot->parts().has_all(MaskPart::kForward | kBackwardParts));
  EXPECT_EQ(slot->device_bytes(), 0);
  backend_->forward(*slot, r.forward_args());
  backend_->backward(*slot, r.backward_args());

  test::RandomAttention of_passes = test::make_random(config_of(), r.slices, 1);
  const auto forward = make_mask_slot(*backend_, slices, r.config.shape, {.passes = AttnPasses::kForward});
  const auto backward = make_mask_slot(*backend_, slices, r.config.shape, {.passes = AttnPasses::kBackward});
  backend_->forward(*forward, of_passes.forward_args());
  backend_->backward(*backward, of_passes.backward_args());
  EXPECT_EQ(of_passes.lse, r.lse);
  EXPECT_EQ(std::memcmp(of_passes.dk.view().data, r.dk.view().data, static_cast<size_t>(r.dk.bytes())), 0);
}

// A slot is used for one mask after the other.
TEST_P(HostSlots, TheMaskThatWasInstalledLastCounts) {
  test::RandomAttention r = test::make_random(config_of(), {AttnSlice::full({0, 40}, {0, 20})}, 1);
  test::RandomAttention same = test::make_random(config_of(), r.slices, 1);
  const std::vector<AttnSlice> other{AttnSlice::causal({0, 40}, {0, 50})};
  const auto slot = make_mask_slot(*backend_, other, r.config.shape);
  backend_->forward(*slot, r.forward_args());
  const std::span<const AttnSlice> slices = r.slices;
  backend_->install(*slot, backend_->build({.masks = {&slices, 1}, .shape = r.config.shape}));
  backend_->forward(*slot, r.forward_args());
  backend_->forward(*make_mask_slot(*backend_, slices, r.config.shape), same.forward_args());
  EXPECT_EQ(r.lse, same.lse);
}

TEST_P(HostSlots, WhatABackendOfHostMemoryCannotDoIsRefused) {
  const AttnShape shape = config_of().shape;
  const std::vector<AttnSlice> slices{AttnSlice::full({0, 40}, {0, 50})};
  const std::vector<std::span<const AttnSlice>> one(1, slices), three(3, slices);
  const std::vector<KeyReadyFlag> flags{{{0, 10}, 0}};
  const std::vector<LocalKvRange> ranges{{{0, 10}, 0}};
  const auto build = [&](const MaskRequest& request) { return refusal_of([&] { backend_->build(request); }); };
  EXPECT_THAT(build({.masks = three, .shape = shape}), HasSubstr("must divide the K/V heads (got 3 masks, 2 heads)"));
  EXPECT_THAT(build({.masks = {}, .shape = shape}), HasSubstr("got 0 masks"));
  EXPECT_THAT(build({.masks = one, .shape = shape, .ready_flags = flags}), HasSubstr("a backend that waits for keys"));
  EXPECT_THAT(build({.masks = one, .shape = shape, .local_ranges = ranges}),
              HasSubstr("a backend that waits for keys"));
  const MaskCapacity capacity{.max_documents = 4};
  EXPECT_THAT(refusal_of([&] { backend_->make_slot(shape, &capacity); }), HasSubstr("a backend with padded slots"));
  const auto slot = backend_->make_slot(shape);
  EXPECT_THAT(refusal_of([&] { backend_->install_device(*slot, CuSeqlens{}, nullptr); }),
              HasSubstr("a backend with padded slots"));
  EXPECT_THAT(refusal_of([&] { backend_->install(*slot, std::make_unique<MaskMetadata>(MaskPart::kForward)); }),
              HasSubstr("must be of backend"));
}

INSTANTIATE_TEST_SUITE_P(Backends, HostSlots, testing::Values("cpu", "reference"));

}  // namespace
}  // namespace tangram
