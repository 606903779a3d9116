// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/doc_lengths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tangram/error.hpp"

namespace tangram::cli {
namespace {

TEST(DrawDocLengths, FillsTheTotalWithDocumentsOfAtMostAQuarter) {
  for (const int64_t total : {1, 3, 100, 8192, 131072, 1048576}) {
    const std::vector<int64_t> lengths = draw_doc_lengths(shipped_length_histogram(), total, 7);
    EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), total);
    EXPECT_GT(*std::min_element(lengths.begin(), lengths.end()), 0);
    EXPECT_LE(*std::max_element(lengths.begin(), lengths.end()), std::max<int64_t>(1, total / 4));
  }
}

TEST(DrawDocLengths, DependsOnTheSeedAlone) {
  const auto draw = [](uint64_t seed) { return draw_doc_lengths(shipped_length_histogram(), 131072, seed); };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(DrawDocLengths, FollowsTheHistogram) {
  // Two intervals, 1 : 3. Of 10,000 and more draws the share is within 0.03 of 3/4: six standard deviations.
  const LengthHistogram histogram{{10, 19, 1}, {100, 199, 3}};
  const std::vector<int64_t> lengths = draw_doc_lengths(histogram, 2'000'000, 3);
  ASSERT_GT(lengths.size(), 10'000u);
  const auto in = [&](int64_t lo, int64_t hi) {
    return std::count_if(lengths.begin(), lengths.end() - 1, [&](int64_t n) { return lo <= n && n <= hi; });
  };
  EXPECT_EQ(in(10, 19) + in(100, 199), static_cast<std::ptrdiff_t>(lengths.size()) - 1);
  EXPECT_NEAR(static_cast<double>(in(100, 199)) / static_cast<double>(lengths.size()), 0.75, 0.03);
  // Uniform inside: both ends occur.
  EXPECT_GT(in(10, 10), 0);
  EXPECT_GT(in(199, 199), 0);
}

TEST(ShippedHistogram, HoldsTheCorpus) {
  const LengthHistogram& histogram = shipped_length_histogram();
  ASSERT_EQ(histogram.size(), 14u);
  EXPECT_EQ(histogram.front().count, 30254);
  EXPECT_EQ(histogram.back().hi, 196608);
}

TEST(ParseLengthHistogram, RefusesWhatCannotBeDrawnFrom) {
  for (const char* text :
       {"{}", R"({"intervals": []})", R"({"intervals": [{"lo": 5, "hi": 4, "count": 1}]})",
        R"({"intervals": [{"lo": 0, "hi": 0, "count": 9}]})", R"({"intervals": [{"lo": 0, "hi": 4}]})",
        R"({"intervals": [{"lo": 0, "hi": 4, "count": 1, "weight": 2}]})"}) {
    EXPECT_THROW(parse_length_histogram(text, "h"), InvalidArgument) << text;
  }
}

TEST(ParseDocLengths, ReadsOneALine) {
  EXPECT_EQ(parse_doc_lengths("# lengths\n12\n\n 7 \r\n1", "f"), (std::vector<int64_t>{12, 7, 1}));
  EXPECT_THROW(parse_doc_lengths("12\n0\n", "f"), InvalidArgument);
  EXPECT_THROW(parse_doc_lengths("12 13\n", "f"), InvalidArgument);
  EXPECT_THROW(parse_doc_lengths("\n", "f"), InvalidArgument);
}

}  // namespace
}  // namespace tangram::cli
