// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which class dimensions belong to, and what becomes of its factors.
#include "machine/head_dim_rates.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attn/sm90/common/shapes.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::vector<HeadDimRate> kRates{{32, 32, 0.5, 0.4}, {128, 128, 1, 1}, {192, 128, 1.5, 0.8}, {256, 256, 2, 0.6}};

std::pair<int, int> class_of(int head_dim, int head_dim_v) {
  const HeadDimRate* const rate = find_head_dim_rate(h200::kHeadDimRates, head_dim, head_dim_v);
  return {rate->head_dim, rate->head_dim_v};
}

TEST(HeadDimRates, ACellIsTwoProductsForwardAndFiveBackward) {
  EXPECT_EQ(flops_per_cell(128, 128, AttnPass::kForward), 4 * 128);
  EXPECT_EQ(flops_per_cell(128, 128, AttnPass::kBackward), 10 * 128);
  EXPECT_EQ(flops_per_cell(192, 128, AttnPass::kForward), 2 * (192 + 128));
  EXPECT_EQ(flops_per_cell(192, 128, AttnPass::kBackward), 2 * (3 * 192 + 2 * 128));
}

TEST(HeadDimRates, DimensionsBelongToTheFirstClassThatHoldsBoth) {
  EXPECT_EQ(class_of(8, 8), std::pair(32, 32));
  EXPECT_EQ(class_of(32, 40), std::pair(64, 64));
  EXPECT_EQ(class_of(72, 72), std::pair(96, 96));
  EXPECT_EQ(class_of(64, 128), std::pair(128, 128));
  EXPECT_EQ(class_of(128, 64), std::pair(128, 128));
  EXPECT_EQ(class_of(136, 128), std::pair(192, 128));
  EXPECT_EQ(class_of(192, 136), std::pair(256, 256));
  EXPECT_EQ(class_of(200, 8), std::pair(256, 256));
  EXPECT_EQ(class_of(576, 512), std::pair(256, 256));  // of no class, so the largest one
  EXPECT_EQ(find_head_dim_rate({}, 128, 128), nullptr);
}

// The default machine's classes are the classes that kernels are compiled for.
TEST(HeadDimRates, ClassesAreThoseOfTheKernels) {
  EXPECT_EQ(std::size(h200::kHeadDimRates), std::size(sm90::kShapeClasses));
  for (int head_dim = 8; head_dim <= sm90::kLargestHeadDim; head_dim += 8) {
    for (int head_dim_v = 8; head_dim_v <= sm90::kLargestHeadDim; head_dim_v += 8) {
      const sm90::ShapeClass& kernels = sm90::shape_class(head_dim, head_dim_v);
      ASSERT_EQ(class_of(head_dim, head_dim_v), std::pair(kernels.head_dim, kernels.head_dim_v));
    }
  }
}

TEST(HeadDimRates, PartOfAClassTakesAsLongAsAllOfIt) {
  for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
    const auto seconds = [&](int head_dim, int head_dim_v) {
      return flops_per_cell(head_dim, head_dim_v, pass) / head_dim_factor(kRates, head_dim, head_dim_v, pass);
    };
    EXPECT_DOUBLE_EQ(seconds(8, 24), seconds(32, 32));
    EXPECT_DOUBLE_EQ(seconds(72, 128), seconds(128, 128));
    EXPECT_DOUBLE_EQ(seconds(136, 64), seconds(192, 128));
  }
  EXPECT_EQ(head_dim_factor(kRates, 128, 128, AttnPass::kForward), 1);
  EXPECT_EQ(head_dim_factor(kRates, 192, 128, AttnPass::kForward), 1.5);
  EXPECT_EQ(head_dim_factor(kRates, 192, 128, AttnPass::kBackward), 0.8);
  EXPECT_EQ(head_dim_factor(kRates, 512, 512, AttnPass::kForward), 2);
  EXPECT_EQ(head_dim_factor({}, 8, 8, AttnPass::kForward), 1);
}

TEST(HeadDimRates, MayBeToldBesideAnyClass) {
  const std::vector<HeadDimRate> relative = relative_rates(kRates, 192, 128);
  EXPECT_EQ(head_dim_factor(relative, 192, 128, AttnPass::kForward), 1);
  EXPECT_EQ(head_dim_factor(relative, 192, 128, AttnPass::kBackward), 1);
  EXPECT_DOUBLE_EQ(head_dim_factor(relative, 256, 256, AttnPass::kForward), 2 / 1.5);
  EXPECT_DOUBLE_EQ(head_dim_factor(relative, 32, 32, AttnPass::kBackward), 0.4 / 0.8);
  EXPECT_EQ(relative_rates(kRates, 128, 128), kRates);
  EXPECT_DOUBLE_EQ(head_dim_factor(relative_rates(kRates, 16, 8), 16, 8, AttnPass::kBackward), 1);
  EXPECT_TRUE(relative_rates({}, 64, 64).empty());
}

TEST(HeadDimRates, WhatMeansNothingIsRefused) {
  const auto refused = [](std::vector<HeadDimRate> rates, const std::string& text) {
    EXPECT_THAT([&] { validate_head_dim_rates(rates, "test", "rates"); }, ThrowsMessage<InvalidArgument>(text));
  };
  validate_head_dim_rates(kRates, "test", "rates");
  refused({{128, 128, 1, 1}, {64, 0, 1, 1}},
          "test: rates[1] must be of positive dimensions (got head_dim=64, head_dim_v=0)");
  refused({{64, 64, 0, 1}}, "test: rates[0] must have finite, positive factors (got forward=0, backward=1)");
  refused({{64, 64, 1, -2}}, "test: rates[0] must have finite, positive factors (got forward=1, backward=-2)");
  refused({{64, 64, 1, std::numeric_limits<double>::infinity()}},
          "test: rates[0] must have finite, positive factors (got forward=1, backward=inf)");
  refused(std::vector<HeadDimRate>(65, {64, 64}), "test: rates must have at most 64 classes (got 65)");
}

}  // namespace
}  // namespace tangram
