// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "schedule/build_cases.hpp"
#include "schedule/builder/report_text.hpp"
#include "schedule/serial_build.hpp"
#include "support/sample.hpp"

namespace tangram::schedule::builder {
namespace {

Report build_ranges(BuiltImages& images, const Ranges& ranges) {
  return images.build([&](const SortBuild& build) { run_build(build, ranges); });
}

TEST(BuildRanges, EqualsTheListsOfTheHostBitForBit) {
  std::mt19937 rng(1);
  for (const ImageCase& c : range_cases()) {
    BuiltImages images(c);
    for (int round = 0; round < support::rounds(2000, 60); ++round) {
      const TypedRanges typed = random_ranges(rng, c);
      const Report report = build_ranges(images, ranges_of(typed));
      ASSERT_EQ(report.problem, Problem::kNone) << report_text(report);
      images.expect_as_host(slices_of(typed));
      ASSERT_FALSE(HasFailure()) << "round " << round << ", " << typed.types.size() << " slices";
    }
  }
}

// Bands of one rectangle have the same ranges in a tile.
TEST(BuildRanges, BandsOfOneRectangle) {
  const ImageCase c = case_of(1000, 1000, 8, 1, {.max_documents = 80});
  BuiltImages images(c);
  const TypedRanges typed{{0, 500, 500, 1000, 0, 499, 500, 999}, {0, 500, 500, 1000, 1, 500, 501, 1000}, {1, 1, 2, 2}};
  ASSERT_EQ(build_ranges(images, ranges_of(typed)).problem, Problem::kNone);
  images.expect_as_host(slices_of(typed));
}

// One group of unequal work tiles is scheduled in sections of heads; some keys are fully masked.
TEST(BuildRanges, SectionsOfANestedMask) {
  for (const auto& [heads_q, heads_kv] : {std::pair{16, 4}, {16, 2}, {12, 4}, {6, 6}, {10, 2}, {14, 2}, {64, 8}}) {
    for (const int32_t rows : {1000, 6000, 12'000, 30'000}) {
      const bool deterministic = rows == 6000 || heads_q == 16;
      const ImageCase c =
          case_of(rows, rows + 1000, heads_q, heads_kv, {.max_documents = 8, .deterministic = deterministic});
      BuiltImages images(c);
      const TypedRanges typed{{0, rows}, {300, 300 + rows}, {1}};
      ASSERT_EQ(build_ranges(images, ranges_of(typed)).problem, Problem::kNone);
      images.expect_as_host(slices_of(typed));
      ASSERT_FALSE(HasFailure()) << heads_q << " and " << heads_kv << " heads, " << rows << " rows";
    }
  }
}

TEST(BuildRanges, OneTypeOfAll) {
  const ImageCase c = case_of(1000, 1000, 8, 1, {.max_documents = 80});
  BuiltImages images(c);
  const TypedRanges typed{{0, 500, 500, 1000}, {0, 500, 500, 1000}, {1, 1}};
  Ranges ranges = ranges_of(typed);
  ranges.types = nullptr;
  ranges.type = 1;
  ASSERT_EQ(build_ranges(images, ranges).problem, Problem::kNone);
  images.expect_as_host(slices_of(typed));
}

// If several pairs overlap, the error names the pair whose later range is given first, with the earliest range that it
// overlaps.
TEST(BuildRanges, TheFirstRangeThatMeetsOneBeforeIsNamed) {
  std::mt19937 rng(2);
  const ImageCase c = case_of(3000, 3000, 8, 1, {.max_documents = 80, .max_slices = 600});
  BuiltImages images(c);
  int64_t num_refused = 0;
  const int rounds = support::rounds(2000, 60);
  for (int round = 0; round < rounds; ++round) {
    TypedRanges typed = random_ranges(rng, c);
    for (int64_t copies = number(rng, 1, 3); copies > 0 && !typed.types.empty(); --copies) {
      const auto of = static_cast<size_t>(number(rng, 0, static_cast<int64_t>(typed.types.size()) - 1));
      const auto at = static_cast<std::ptrdiff_t>(number(rng, 0, static_cast<int64_t>(typed.types.size())));
      const std::vector<int32_t> q{typed.q[2 * of], typed.q[2 * of + 1]}, k{typed.k[2 * of], typed.k[2 * of + 1]};
      typed.types.insert(typed.types.begin() + at, typed.types[of]);
      typed.q.insert(typed.q.begin() + 2 * at, q.begin(), q.end());
      typed.k.insert(typed.k.begin() + 2 * at, k.begin(), k.end());
    }
    const std::vector<AttnSlice> slices = slices_of(typed).by_rows;
    Report wanted;
    for (size_t later = 0; later < slices.size() && wanted.problem == Problem::kNone; ++later) {
      for (size_t earlier = 0; earlier < later && wanted.problem == Problem::kNone; ++earlier) {
        if (intersect(slices[earlier], slices[later]).q_range.empty()) continue;
        wanted.problem = Problem::kOverlap;
        wanted.index = static_cast<int32_t>(later), wanted.got = static_cast<int64_t>(earlier);
      }
    }
    const Report report = build_ranges(images, ranges_of(typed));
    num_refused += wanted.problem != Problem::kNone;
    ASSERT_EQ(report.num_refused, num_refused) << "round " << round;
    if (wanted.problem == Problem::kNone) continue;
    ASSERT_EQ(report.index, wanted.index) << "round " << round;
    ASSERT_EQ(report.got, wanted.got) << "round " << round;
    images.expect_as_host({});
  }
  EXPECT_GT(num_refused, rounds / 3);
}

TEST(BuildRanges, TurnsThatHaveNoRoomAreRefused) {
  const ImageCase c = case_of(512, 640, 8, 1, {.max_documents = 4, .max_slices = 40, .deterministic = true});
  BuiltImages images(c);
  const TypedRanges good{{0, 200, 0, 200, 200, 512}, {0, 300, 300, 640, 0, 640}, {0, 1, 1}};
  const int64_t refused = images
                              .build([&](SortBuild build) {
                                build.turns.max_segments = 3;
                                run_build(build, ranges_of(good));
                              })
                              .num_refused;
  EXPECT_EQ(refused, 1);
  images.expect_as_host({});
  EXPECT_EQ(build_ranges(images, ranges_of(good)).num_refused, 1) << "the next one is taken";
  images.expect_as_host(slices_of(good));
}

TEST(BuildRanges, WhatIsRefusedLeavesAMaskThatShowsNothing) {
  const ImageCase c = case_of(1000, 600, 8, 1, {.max_documents = 80});
  BuiltImages images(c);
  const TypedRanges good{{0, 100, 50, 300, 300, 400}, {0, 100, 100, 300, 0, 600}, {0, 1, 2}};
  const auto with = [&](auto TypedRanges::* list, size_t at, int32_t value) {
    TypedRanges typed = good;
    (typed.*list)[at] = value;
    return typed;
  };
  struct Case {
    TypedRanges typed;
    const char* text;
  };
  int64_t num_refused = 0;
  for (const Case& wrong : std::vector<Case>{
           {with(&TypedRanges::q, 3, 1001), "set_ranges: q_ranges[1] must lie in [0, seqlen_q) (got [50, 1001); found"},
           {with(&TypedRanges::q, 0, 101), "q_ranges[0] must lie in [0, seqlen_q) (got [101, 100)"},
           {with(&TypedRanges::k, 4, -1), "k_ranges[2] must lie in [0, seqlen_k) (got [-1, 600)"},
           {with(&TypedRanges::types, 2, 4), "3 (bi_causal) (got types[2]=4"},
           {with(&TypedRanges::k, 2, 90), "slices must not cover a cell twice (got slices 0 and 1"},
           {with(&TypedRanges::q, 4, 299), "slices must not cover a cell twice (got slices 1 and 2"},
       }) {
    const Report report = build_ranges(images, ranges_of(wrong.typed));
    EXPECT_EQ(report.num_refused, ++num_refused);
    EXPECT_NE(report_text(report).find(wrong.text), std::string::npos) << report_text(report);
    images.expect_as_host({});
    ASSERT_FALSE(HasFailure()) << num_refused;
  }
  EXPECT_EQ(build_ranges(images, ranges_of(good)).num_refused, num_refused) << "the next one is taken";
  images.expect_as_host(slices_of(good));
}

}  // namespace
}  // namespace tangram::schedule::builder
