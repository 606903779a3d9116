// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/flex_attention.hpp"

#include <gtest/gtest.h>

#include "runtime/dense_backend.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

/// Notes what it is asked to build; computes nothing.
class NotingBackend final : public AttnBackend {
 public:
  explicit NotingBackend(MemoryKind memory) : memory_(memory) {}
  AttnCaps caps() const override { return {.name = "noting", .memory = memory_}; }
  MaskPart backward_part(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                         const CallOptions& call) const override {
    return call.plain ? MaskPart::kBackwardSparse : AttnBackend::backward_part(masks, shape, call);
  }
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override {
    slices.assign(request.masks[0].begin(), request.masks[0].end());
    shape = request.shape;
    built.push_back(request.parts);
    const bool declines = declines_sparse && request.parts == MaskPart::kBackwardSparse;
    return std::make_unique<MaskMetadata>(declines ? MaskParts(MaskPart::kBackward) : request.parts);
  }
  std::unique_ptr<MaskSlot> make_slot(const AttnShape&, const MaskCapacity*) const override {
    return std::make_unique<Slot>();
  }
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void*) const override {
    static_cast<Slot&>(slot).add(metadata->parts());
  }
  void forward(MaskSlot&, const AttnForwardArgs&, void*) const override {}
  void backward(MaskSlot&, const AttnBackwardArgs&, void*) const override {}

  mutable std::vector<AttnSlice> slices;
  mutable AttnShape shape;
  mutable std::vector<MaskParts> built;
  bool declines_sparse = false;

 private:
  struct Slot final : MaskSlot {
    void add(MaskParts parts) { add_parts(parts); }
  };
  MemoryKind memory_;
};

constexpr HeadConfig kHeads{4, 2, 16, 8, DType::kFloat32};

TEST(FlexAttention, EachPartIsBuiltOnceWhenItIsFirstNeeded) {
  const NotingBackend backend(MemoryKind::kHost);
  const Mask mask = causal_mask(40, 60);
  FlexAttention attention(mask, kHeads, backend);
  EXPECT_EQ(backend.built, (std::vector<MaskParts>{MaskPart::kForward}));
  EXPECT_EQ(backend.slices, std::vector<AttnSlice>(mask.slices().begin(), mask.slices().end()));
  EXPECT_EQ(attention.shape(), (AttnShape{40, 60, 4, 2, 16, 8, DType::kFloat32}));
  EXPECT_EQ(backend.shape, attention.shape());
  attention.forward({});
  for (int i = 0; i < 2; ++i) {
    attention.backward({.options = {.deterministic = true}});
    attention.backward({});
    attention.backward({.options = {.softcap = 2}});
  }
  EXPECT_EQ(backend.built, (std::vector<MaskParts>{MaskPart::kForward, MaskPart::kBackwardOrdered,
                                                   MaskPart::kBackwardSparse, MaskPart::kBackward}));
}

TEST(FlexAttention, AnotherPartThatPlainCallsTakeIsNotBuiltAgain) {
  NotingBackend backend(MemoryKind::kHost);
  backend.declines_sparse = true;
  FlexAttention attention(causal_mask(40, 60), kHeads, backend);
  attention.backward({});
  attention.backward({});
  attention.backward({.options = {.softcap = 2}});
  EXPECT_EQ(backend.built, (std::vector<MaskParts>{MaskPart::kForward, MaskPart::kBackwardSparse}));
  NotingBackend other(MemoryKind::kHost);
  FlexAttention capped_first(causal_mask(40, 60), kHeads, other);
  capped_first.backward({.options = {.softcap = 2}});
  capped_first.backward({});
  EXPECT_EQ(other.built, (std::vector<MaskParts>{MaskPart::kForward, MaskPart::kBackward}));
}

TEST(FlexAttention, SlicesForADeviceAreChecked) {
  const NotingBackend backend(MemoryKind::kDevice);
  const AttnShape shape{40, 40, 1, 1, 16, 16, DType::kFloat32};
  const AttnSlice outside[] = {AttnSlice::full({0, 41}, {0, 40})};
  EXPECT_THROW(FlexAttention(outside, shape, backend), InvalidArgument);
  const AttnSlice twice[] = {AttnSlice::full({0, 20}, {0, 20}), AttnSlice::full({19, 40}, {19, 40})};
  EXPECT_THROW(FlexAttention(twice, shape, backend), InvalidArgument);
  EXPECT_THROW(make_mask_slot(backend, twice, shape), InvalidArgument);
  EXPECT_TRUE(backend.built.empty());
}

}  // namespace
}  // namespace tangram
