// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram plan`, `run` and `verify` with a mask for each group of heads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/npy.hpp"
#include "cli/program.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// The lengths were those of the groups one after the other.
TEST(BenchVerb, HeadGroupsHaveTheLengthsOfTheirMasks) {
  const TempFolder folder;
  const std::string masks = folder.write("masks.json", R"({"head_masks":[
      {"seqlen":64,"q_ranges":[[0,64]],"k_ranges":[[0,64]]},
      {"seqlen":64,"q_ranges":[[0,64]],"k_ranges":[[0,64]],"attn_types":["causal"]}]})");
  const ProgramResult bench = run_program({"bench", "--mask", masks, "--cp-size", "2", "--plan-only"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("masks.json\",64,64,2,"));
  const ProgramResult report = run_program({"plan", "--mask", masks, "--html", folder.path("x.html")});
  EXPECT_EQ(report.code, 2);
  EXPECT_THAT(report.err, HasSubstr("--html: reports show one mask for all heads (got one for each group)"));
}

TEST(VerifyVerb, HeadGroupsSeeDifferentCells) {
  const TempFolder folder;
  const std::string masks =
      folder.write("masks.json",
                   R"({"head_masks":[{"seqlen":250,"q_ranges":[[0,250]],"k_ranges":[[0,250]],"attn_types":["causal"]},
                        {"seqlen":250,"q_ranges":[[0,250]],"k_ranges":[[0,250]],"bands":[[-40,3]]}]})");
  for (const char* movement : {"kv", "qo", "auto"}) {
    const ProgramResult result = run_program({"verify", "--mask", masks, "--cp-size", "4", "--heads-q", "4",
                                              "--heads-kv", "2", "--head-dim", "16", "--movement", movement});
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("for each of 2 head groups: 256 x 256 tokens"));
    EXPECT_THAT(result.out, HasSubstr(std::string("movement   ") + movement + ", 2 head groups"));
  }
  // With the first mask for all heads, the first group's heads have the same results, other heads do not.
  const std::string causal = folder.write(
      "causal.json", R"({"seqlen":250,"q_ranges":[[0,250]],"k_ranges":[[0,250]],"attn_types":["causal"]})");
  for (const auto& [name, mask] : {std::pair("both", masks), std::pair("first", causal)}) {
    const ProgramResult result = run_program({"run", "--mask", mask, "--cp-size", "2", "--heads-q", "4", "--heads-kv",
                                              "2", "--head-dim", "16", "--out-dir", folder.path(name)});
    ASSERT_EQ(result.code, 0) << result.err;
  }
  const HostTensor both = read_npy(folder.path("both/out.npy"), "both");
  const HostTensor first = read_npy(folder.path("first/out.npy"), "first");
  ASSERT_EQ(both.rows(), 250);
  double same = 0, others = 0;
  for (int64_t row = 0; row < 250; ++row) {
    for (int head = 0; head < 4; ++head) {
      double& largest = head < 2 ? same : others;
      for (int d = 0; d < 16; ++d)
        largest = std::max(largest, std::abs(double{both.at(row, head, d)} - first.at(row, head, d)));
    }
  }
  EXPECT_LT(same, 1e-5);
  EXPECT_GT(others, 0.01);
  const Json plan =
      Json::parse(run_program({"plan", "--mask", masks, "--heads-q", "4", "--heads-kv", "2", "--json"}).out);
  EXPECT_EQ(plan["mask"]["head_groups"], 2);
  EXPECT_EQ(plan["mask"]["seqlen_q"], 256);
  const ProgramResult odd = run_program({"plan", "--mask", masks, "--heads-q", "3"});
  EXPECT_EQ(odd.code, 2);
  EXPECT_THAT(odd.err, HasSubstr("the number of masks must divide num_heads_kv (got 2 and num_heads_kv=3)"));
  const ProgramResult simulated = run_program({"simulate", "--mask", masks});
  EXPECT_EQ(simulated.code, 2);
  EXPECT_THAT(simulated.err, HasSubstr("takes one mask for all heads (got 2 of head groups)"));
}

}  // namespace
}  // namespace tangram::cli
