// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/flex_attention.hpp"

#include <gtest/gtest.h>

#include "runtime/dense_backend.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

/// Notes what it was given; computes nothing.
class NotingBackend final : public AttnBackend {
 public:
  explicit NotingBackend(std::optional<TileShape> tile_shape) : tile_shape_(tile_shape) {}
  std::string_view name() const override { return "noting"; }
  std::optional<TileShape> tile_shape(const AttnShape&) const override { return tile_shape_; }
  std::unique_ptr<PreparedMask> prepare(std::span<const AttnSlice> given, const AttnShape& shape,
                                        const TileList* tiles) const override {
    slices.assign(given.begin(), given.end());
    address = given.data();
    seen_shape = shape;
    tile_list = tiles == nullptr ? std::nullopt : std::optional<TileList>(*tiles);
    ++num_prepared;
    return std::make_unique<PreparedMask>();
  }
  void forward(PreparedMask&, const AttnForwardArgs&, void*) const override {}
  void backward(PreparedMask&, const AttnBackwardArgs&, void*) const override {}

  mutable std::vector<AttnSlice> slices;
  mutable const AttnSlice* address = nullptr;
  mutable AttnShape seen_shape;
  mutable std::optional<TileList> tile_list;
  mutable int num_prepared = 0;

 private:
  std::optional<TileShape> tile_shape_;
};

TEST(FlexAttention, PreparesOnceAndPassesSlicesAsTheyAre) {
  const NotingBackend backend(std::nullopt);
  const Mask mask = causal_mask(40, 60);
  FlexAttention attention(mask, {4, 2, 16, 8, DType::kFloat32}, backend);
  attention.forward({});
  attention.backward({});
  EXPECT_EQ(backend.num_prepared, 1);
  EXPECT_EQ(backend.slices, std::vector<AttnSlice>(mask.slices().begin(), mask.slices().end()));
  EXPECT_FALSE(backend.tile_list.has_value());
  EXPECT_EQ(attention.shape(), (AttnShape{40, 60, 4, 2, 16, 8, DType::kFloat32}));
  EXPECT_EQ(backend.seen_shape, attention.shape());
}

// A new mask at every step would be checked twice at every step.
TEST(FlexAttention, SlicesOfAMaskAreNotCheckedAgainAndOthersAre) {
  const NotingBackend backend(TileShape{16, 32});
  const Mask mask = causal_mask(40, 40);
  const FlexAttention attention(mask, {1, 1, 16, 16, DType::kFloat32}, backend);
  EXPECT_EQ(backend.address, mask.slices().data());
  const TileList tiles = *backend.tile_list;
  const FlexAttention of_slices(mask.slices(), attention.shape(), backend);
  EXPECT_NE(backend.address, mask.slices().data());
  EXPECT_EQ(*backend.tile_list, tiles);
  const std::vector<AttnSlice> twice(2, mask.slices()[0]);
  EXPECT_THROW(FlexAttention(twice, attention.shape(), backend), InvalidArgument);
}

TEST(FlexAttention, BuildsTheTileListThatTheBackendAsksFor) {
  const NotingBackend backend(TileShape{16, 32});
  FlexAttention attention(causal_mask(40, 40), {1, 1, 16, 16, DType::kFloat32}, backend);
  ASSERT_TRUE(backend.tile_list.has_value());
  EXPECT_EQ(backend.tile_list->shape, (TileShape{16, 32}));
  EXPECT_EQ(backend.tile_list->seqlen_q, 40);
  EXPECT_EQ(backend.tile_list->work_tiles.size(), 3u);  // 16 + 16 + 8 rows
}

TEST(FlexAttention, RejectsSlicesThatATileListCannotBeBuiltFrom) {
  const NotingBackend backend(TileShape{16, 32});
  const AttnShape shape{40, 40, 1, 1, 16, 16, DType::kFloat32};
  const AttnSlice outside[] = {AttnSlice::full({0, 41}, {0, 40})};
  EXPECT_THROW(FlexAttention(outside, shape, backend), InvalidArgument);
  const AttnSlice twice[] = {AttnSlice::full({0, 20}, {0, 20}), AttnSlice::full({19, 40}, {19, 40})};
  EXPECT_THROW(FlexAttention(twice, shape, backend), InvalidArgument);
  EXPECT_EQ(backend.num_prepared, 0);
}

}  // namespace
}  // namespace tangram
