// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/mask_json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/bounded_json.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;

// Parses a file with one mask for all heads.
Mask parse_one(const std::string& text, const std::string& which = "") {
  const std::vector<Mask> masks = parse_masks_json(text, which, "m");
  EXPECT_EQ(masks.size(), 1u);
  return masks.front();
}

std::string error_of(const std::string& text, const std::string& which = "") {
  try {
    parse_one(text, which);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(ParseMaskJson, TypesByNumberAndByName) {
  const Mask causal = causal_mask(8, 8);
  EXPECT_EQ(parse_one(R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]],"attn_types":[1]})"), causal);
  EXPECT_EQ(parse_one(R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]],"attn_types":["causal"]})"), causal);
  EXPECT_EQ(parse_one(R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]]})"), full_mask(8, 8));
}

TEST(ParseMaskJson, BandsWithOpenSides) {
  EXPECT_EQ(parse_one(R"({"seqlen":9,"q_ranges":[[0,9]],"k_ranges":[[0,9]],"bands":[[-2,0]]})"),
            sliding_window_mask(9, {2, 0}));
  EXPECT_EQ(parse_one(R"({"seqlen":9,"q_ranges":[[0,9]],"k_ranges":[[0,9]],"bands":[[null,0]]})"), causal_mask(9, 9));
  EXPECT_EQ(parse_one(R"({"seqlen_q":4,"seqlen_k":9,"q_ranges":[[0,4]],"k_ranges":[[0,9]],"bands":[[null,null]]})"),
            full_mask(4, 9));
}

TEST(ParseMaskJson, PicksACase) {
  const std::string text = R"({"meta":{"x":1},"cases":[
    {"mask":"full","seqlen":4,"q_ranges":[[0,4]],"k_ranges":[[0,4]],"attn_types":[0],"area":16},
    {"mask":"full","seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]],"attn_types":[0]},
    {"mask":"causal","seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]],"attn_types":[1]}]})";
  EXPECT_EQ(parse_one(text, "full:8"), full_mask(8, 8));
  EXPECT_EQ(parse_one(text, "causal"), causal_mask(8, 8));
  EXPECT_THAT(error_of(text), HasSubstr("choose one by --case NAME:SEQLEN out of full:4, full:8, causal:8"));
  EXPECT_THAT(error_of(text, "full"), HasSubstr("must name one case (got 2)"));
  EXPECT_THAT(error_of(text, "full:5"), HasSubstr("has no case 'full:5'"));
}

TEST(ParseMaskJson, MasksOfHeadGroups) {
  const std::string causal = R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]],"attn_types":[1]})";
  const std::string full = R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]]})";
  const auto parse = [](const std::string& text) { return parse_masks_json(text, "", "m"); };
  EXPECT_EQ(parse(causal), std::vector<Mask>{causal_mask(8, 8)});
  EXPECT_EQ(parse(R"({"head_masks":[)" + causal + "," + full + "]}"),
            (std::vector<Mask>{causal_mask(8, 8), full_mask(8, 8)}));
  const auto refused = [&](const std::string& text, const char* why) {
    try {
      parse(text);
      ADD_FAILURE() << "expected: " << why;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  refused(R"({"head_masks":[]})", "'head_masks' must not be empty");
  refused(R"({"head_masks":{}})", "'head_masks' must be a list");
  refused(R"({"head_masks":[7]})", "m: head_masks[0]: must be a JSON object (got 7)");
  refused(R"({"head_masks":[)" + full + R"(,{"seqlen":8,"q_ranges":[]}]})", "m: head_masks[1]: needs 'k_ranges'");
  refused(R"({"head_masks":[)" + full + R"(],"seqlen":8})", "unknown key 'seqlen'");
}

TEST(ParseMaskJson, NamesWhatIsWrong) {
  EXPECT_THAT(error_of(R"({"seqlen":8,"q_range":[[0,8]],"k_ranges":[[0,8]]})"),
              HasSubstr("unknown key 'q_range' (did you mean 'q_ranges'?)"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"q_ranges":[[0,9]],"k_ranges":[[0,8]]})"),
              HasSubstr("slices[0].q_range must lie in [0, 8) (got [0, 9))"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"q_ranges":[[0,8],[4,8]],"k_ranges":[[0,8],[0,4]]})"),
              HasSubstr("must not cover a cell twice (got slices[0]"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]],"attn_types":[4]})"),
              HasSubstr("attn_types[0] must lie in [0, 3] (got 4)"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]],"attn_types":["casual"]})"),
              HasSubstr("attn_types[0] must be 0..3, full, causal, inv_causal or bi_causal (got 'casual')"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"q_ranges":[[0,8.5]],"k_ranges":[[0,8]]})"),
              HasSubstr("q_ranges[0][1] must be a whole number (got 8.5)"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[]})"), HasSubstr("equally long (got 1 and 0)"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]],"bands":[[2,1]]})"),
              HasSubstr("bands[0] must not be reversed"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"seqlen_q":8,"q_ranges":[],"k_ranges":[]})"),
              HasSubstr("needs either 'seqlen' or both"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"seqlen":8,"q_ranges":[],"k_ranges":[]})"),
              HasSubstr("key 'seqlen' must not be repeated"));
  EXPECT_THAT(error_of(R"({"seqlen":8,"q_ranges":[[0,8]],"k_ranges":[[0,8]],"area":63})"),
              HasSubstr("'area' must be the number of visible cells (got 63, the slices show 64)"));
  EXPECT_THAT(error_of("{\"seqlen\":8,"), HasSubstr("m: must be JSON (byte"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(error_of(R"({"seqlen":99999999999999999999,"q_ranges":[],"k_ranges":[]})"), HasSubstr("seqlen must be"));
}

TEST(BoundedJson, StopsAtItsLimits) {
  const std::string deep(100'000, '[');
  EXPECT_THAT(error_of(deep), HasSubstr("must not nest deeper than 8 levels"));
  EXPECT_THAT(error_of("{\"" + std::string(5000, 'x') + "\":1}"), HasSubstr("strings must not exceed 4096 bytes"));
  JsonLimits limits;
  limits.max_values = 10;
  EXPECT_THROW(parse_bounded_json("[1,1,1,1,1,1,1,1,1,1]", "m", limits), InvalidArgument);
  EXPECT_EQ(parse_bounded_json("[1,1,1,1,1,1,1,1,1]", "m", limits).size(), 9u);
  limits.max_bytes = 3;
  EXPECT_THROW(parse_bounded_json("[1 ]", "m", limits), InvalidArgument);
}

}  // namespace
}  // namespace tangram::cli
