// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a user gets for input that cannot be right: a message that names it, and exit code 2, before anything runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;

struct BadCase {
  std::vector<std::string> args;
  std::string message;
};

void expect_refused(const BadCase& bad) {
  const ProgramResult result = run_program(bad.args);
  EXPECT_EQ(result.code, 2) << bad.message << "\n" << result.err;
  EXPECT_THAT(result.err, HasSubstr(bad.message));
  EXPECT_EQ(result.out, "");
}

TEST(BadInput, Usage) {
  const BadCase cases[] = {
      {{}, "A subcommand is required"},
      {{"plan", "--bogus"}, "--bogus"},
      {{"plan"}, "needs a source"},
      {{"plan", "--family", "causal", "--seqlen", "64", "--total-seqlen", "64"}, "needs one source"},
      {{"plan", "--family", "casual", "--seqlen", "64"}, "did you mean 'causal'?"},
      {{"plan", "--family", "causal", "--seqlen", "many"}, "--seqlen"},
      {{"plan", "--family", "causal", "--seqlen", "0"}, "--seqlen: must be positive (got 0)"},
      {{"plan", "--family", "sliding_window", "--seqlen", "64", "--window", "3"}, "--window: must be L,R (got '3')"},
      {{"plan", "--family", "sliding_window", "--seqlen", "64", "--window", "-2,0"}, "--window"},
      {{"plan", "--seqlen", "64"}, "--seqlen: needs --family NAME"},
      {{"plan", "--cu-seqlens", "0,64,32"}, "must not decrease"},
      {{"plan", "--cu-seqlens", "1,64"}, "must start with 0"},
      {{"plan", "--mask", "/no/such/file"}, "cannot read '/no/such/file': No such file or directory"},
      {{"plan", "--family", "full", "--seqlen", "64", "--html", "/no/such/folder/x.html"}, "--html: cannot write"},
  };
  for (const BadCase& bad : cases) expect_refused(bad);
}

TEST(BadInput, Distribution) {
  const std::vector<std::string> base{"plan", "--family", "causal", "--seqlen", "1024"};
  const BadCase cases[] = {
      {{"--cp-size", "0"}, "--cp-size: must lie in [1, 65536] (got 0)"},
      {{"--cp-size", "-3"}, "--cp-size"},
      {{"--cp-size", "8", "--chunk-size", "256"}, "must not exceed the number of chunks, 4"},
      {{"--cp-size", "2000"}, "must not exceed the number of chunks, 1024"},
      {{"--heads-q", "6", "--heads-kv", "4"}, "--heads-q: must be a multiple of --heads-kv (got 6 and 4)"},
      {{"--head-dim", "-1"}, "--head-dim"},
      {{"--dispatch", "magic"}, "magic"},
      {{"--stages", "0"}, "--stages: must lie in [1, 64] (got 0)"},
      {{"--dtype", "fp8"}, "fp8"},
      {{"--chunk-size", "-64"}, "--chunk-size"},
  };
  for (BadCase bad : cases) {
    bad.args.insert(bad.args.begin(), base.begin(), base.end());
    expect_refused(bad);
  }
}

TEST(BadInput, MaskFiles) {
  const TempFolder folder;
  const auto refused = [&](const std::string& json, const std::string& message) {
    expect_refused({{"plan", "--mask", folder.write("mask.json", json)}, message});
  };
  refused(R"({"seqlen":64,"q_ranges":[[0,64],[32,64]],"k_ranges":[[0,64],[0,8]]})", "must not cover a cell twice");
  refused(R"({"seqlen":64,"q_ranges":[[0,65]],"k_ranges":[[0,64]]})", "must lie in [0, 64) (got [0, 65))");
  refused(R"({"seqlen":64,"q_ranges":[[9,3]],"k_ranges":[[0,64]]})", "slices[0].q_range");
  refused(R"({"seqlen":64,"ranges":[]})", "unknown key 'ranges'");
  refused(std::string(1'000'000, '['), "must not nest deeper than 8 levels");
  refused("{\"seqlen\":64,\"q_ranges\":[[0,1]", "must be JSON");
}

TEST(BadInput, HelpAndVersionAreNot) {
  EXPECT_EQ(run_program({"--help"}).code, 0);
  EXPECT_THAT(run_program({"--help"}).out, HasSubstr("Exit codes"));
  EXPECT_EQ(run_program({"--version"}).out, "tangram " TANGRAM_TEST_VERSION "\n");
  EXPECT_THAT(run_program({"plan", "--help"}).out, HasSubstr("--cu-seqlens"));
}

}  // namespace
}  // namespace tangram::cli
