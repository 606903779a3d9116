// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How long schedules take, and what is known of it without playing them.
#include "schedule/makespan.hpp"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>
#include <vector>

#include "schedule/tile_schedule_candidates.hpp"

namespace tangram::schedule {
namespace {

class Draw {
 public:
  explicit Draw(unsigned seed) : rng_(seed) {}
  int operator()(int from, int to) { return std::uniform_int_distribution(from, to)(rng_); }
  template <typename T, size_t kCount>
  T of(const std::array<T, kCount>& values) {
    return values[static_cast<size_t>((*this)(0, kCount - 1))];
  }

 private:
  std::mt19937 rng_;
};

/// A causal mask, work tiles of any length, some without a step, or packed causal documents.
Extents draw_extents(Draw& draw) {
  std::vector<Extent> of_keys;
  const int kind = draw(0, 2);
  if (kind == 0) {
    for (int64_t tile = draw(1, 200); tile > 0; --tile) of_keys.push_back({2 * tile, 0, 2 * tile});
  } else if (kind == 1) {
    const int longest = draw(0, 9) == 0 ? 0 : 90;
    for (int i = draw(1, 100); i > 0; --i) of_keys.push_back({draw(0, longest), 0, 90});
  } else {
    int64_t end = 0;
    for (int documents = draw(1, 30); documents > 0; --documents) {
      const int64_t length = draw(0, 3) == 0 ? draw(1, 60) : draw(1, 6);
      end += 2 * length;
      for (int64_t tile = length; tile > 0; --tile) of_keys.push_back({2 * tile, end - 2 * tile, end});
    }
  }
  return make_extents(of_keys);
}

AttnShape draw_shape(Draw& draw, int group) {
  const int heads = draw.of(std::array{1, 2, 4, 8});
  const int64_t rows = draw.of(std::array{1024, 4096, 8192, 16384, 32768});
  return {rows, rows, heads * group, heads, 128, 128, DType::kBFloat16};
}

constexpr std::array kGroups{1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16};

TEST(Makespan, IsExactUpToWhatIsEnough) {
  Draw draw(1);
  const Extents extents = draw_extents(draw);
  const AttnShape shape = draw_shape(draw, 8);
  const Setting in{extents, shape, {}, {}};
  const double exact = makespan(in, {});
  EXPECT_EQ(makespan(in, {}, {}, exact), exact);
  EXPECT_GT(makespan(in, {}, {}, exact / 2), exact / 2);
  EXPECT_LE(least_makespan(in), exact);
}

TEST(Makespan, LiesBetweenItsBounds) {
  Draw draw(2);
  int near = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    const Extents extents = draw_extents(draw);
    const int group = draw.of(kGroups);
    const AttnShape shape = draw_shape(draw, group);
    const Setting in{extents, shape, {draw(0, 2) == 0 ? draw(1, 140) : 132, int64_t{50} << 20}, {}};
    TileSchedule how{.head_splits = draw(1, group), .heads_in_l2 = draw(0, 4), .by_document = draw(0, 1) == 1};
    if (!can_cut(group, how.head_splits)) how.head_splits = 1;
    if (draw(0, 2) == 0) how.head_splits = group, how.max_steps = draw(1, 600);
    const std::optional<Bounds> bounds = makespan_bounds(in, how);
    ASSERT_TRUE(bounds);
    const double steps = makespan(in, how);
    ASSERT_LE(bounds->least, steps) << "round " << round;
    ASSERT_GE(bounds->most, steps) << "round " << round;
    if (bounds->most < 1.03 * steps) ++near;
  }
  EXPECT_GT(near, kRounds / 3) << "bounds that are far apart save nothing";
}

TEST(Makespan, HasNoBoundsWhereSchedulesChangeTowardsTheEnd) {
  const Extents extents = make_extents({{4, 0, 4}, {2, 0, 2}});
  const AttnShape shape{256, 256, 8, 1, 128, 128, DType::kBFloat16};
  const std::vector<double> arrives{0, 1};
  EXPECT_FALSE(makespan_bounds({extents, shape, {}, arrives}, {}));
  EXPECT_FALSE(makespan_bounds({extents, shape, {}, {}}, {.heads_in_l2 = 1, .last_wave_heads = 2}));
  EXPECT_FALSE(makespan_bounds({extents, shape, {}, {}}, {.head_splits = 8, .max_steps = 3, .guided_divisor = 132}));
}

TEST(Quickest, IsTheFirstOfTheLeastMakespansHoweverFewAreKnown) {
  Draw draw(3);
  int not_played = 0;
  for (int round = 0; round < 1000; ++round) {
    const Extents extents = draw_extents(draw);
    const int group = draw.of(kGroups);
    const AttnShape shape = draw_shape(draw, group);
    const Setting in{extents, shape, {}, {}};
    std::vector<TileSchedule> of;
    for (int i = draw(1, 5); i > 0; --i) {
      of.push_back({.head_splits = draw(1, group), .heads_in_l2 = draw(0, 6)});
      if (!can_cut(group, of.back().head_splits)) of.back().head_splits = group;
    }
    TileSchedule best = of.front();
    for (const TileSchedule& how : of) {
      if (makespan(in, how) < makespan(in, best)) best = how;
    }
    const Quickest found = quickest(in, of);
    ASSERT_EQ(found.how, best) << "round " << round;
    if (found.steps) {
      EXPECT_EQ(*found.steps, makespan(in, best));
    } else if (of.size() > 1) {
      ++not_played;
    }
  }
  EXPECT_GT(not_played, 100);
}

}  // namespace
}  // namespace tangram::schedule
