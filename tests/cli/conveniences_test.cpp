// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the program takes and says beside its figures: units, standard streams, completion, progress, its own words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/program.hpp"
#include "cli/progress.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// What `command`, a line for bash in which $TANGRAM is the program, prints.
std::string shell(const std::string& command) {
  const TempFolder folder;
  const std::string script = folder.write("script", "TANGRAM='" TANGRAM_PROGRAM "'\n" + command);
  const int status = std::system(("bash " + script + " >" + folder.path("out") + " 2>&1").c_str());
  EXPECT_EQ(status, 0) << read_all(folder.path("out"));
  return read_all(folder.path("out"));
}

nlohmann::json plan_of(std::vector<std::string> args) {
  args.insert(args.begin(), {"plan", "--json"});
  const ProgramResult result = run_program(args);
  EXPECT_EQ(result.code, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, false);
}

TEST(Conveniences, NumbersTakeUnits) {
  EXPECT_EQ(plan_of({"--family", "causal", "--seqlen", "8K"})["mask"]["seqlen_q"], 8192);
  EXPECT_EQ(plan_of({"--family", "sliding_window", "--seqlen", "1M", "--chunk-size", "2k"})["mask"]["seqlen_q"],
            1 << 20);
  for (const auto& [text, message] : {std::pair("K", "must be a whole number (got 'K'), K or M behind it"),
                                      std::pair("8KK", "must be a whole number (got '8KK')"),
                                      std::pair("9999999999999999M", "must be a number of 64 bits")}) {
    const ProgramResult result = run_program({"plan", "--family", "causal", "--seqlen", text});
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST(Conveniences, MasksComeFromStandardInput) {
  const TempFolder folder;
  const std::string file =
      folder.write("mask.json", R"({"seqlen": 64, "q_ranges": [[0, 64]], "k_ranges": [[0, 64]], "attn_types": [1]})");
  nlohmann::json read = nlohmann::json::parse(shell("$TANGRAM plan --json --mask - < " + file));
  nlohmann::json named = plan_of({"--mask", file});
  EXPECT_EQ(read["mask"]["name"], "standard input");
  for (nlohmann::json* json : {&read, &named}) {
    json->erase("plan_ms");
    (*json)["mask"].erase("name");
  }
  EXPECT_EQ(read, named);
  EXPECT_EQ(plan_of({"--cu-seqlens", "0,30,64"})["mask"]["seqlen_q"],
            nlohmann::json::parse(shell("echo 0,30,64 | $TANGRAM plan --json --cu-seqlens -"))["mask"]["seqlen_q"]);
  EXPECT_THAT(run_program({"plan", "--mask", "-"}).err, HasSubstr("--mask: there must be text at standard input"));
}

TEST(Conveniences, ReportsGoToStandardOutputAlone) {
  const ProgramResult report = run_program({"plan", "--family", "causal", "--seqlen", "1024", "--html", "-"});
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(report.out, StartsWith("<!doctype html>"));
  EXPECT_THAT(report.out, Not(HasSubstr("\nmask       causal")));  // the text
  const std::vector<std::string> plan{"plan", "--family", "causal", "--seqlen", "64"};
  for (const auto& more : {std::vector<std::string>{"--html", "-", "--json"},
                           {"--html", "-", "--program", "0"},
                           {"--html", "-", "--save-plan", "-"}}) {
    std::vector<std::string> args = plan;
    args.insert(args.end(), more.begin(), more.end());
    const ProgramResult result = run_program(args);
    EXPECT_EQ(result.code, 2) << more.back();
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("--html"));
  }
  EXPECT_THAT(shell("$TANGRAM simulate --family causal --seqlen 4096 --strategies tangram --html - | head -c 15"),
              StartsWith("<!doctype html>"));
}

TEST(Conveniences, ShellsCompleteVerbsAndOptions) {
  const std::string begin = "source <($TANGRAM completion)\n";
  const auto completed = [&](const std::string& words, int at) {
    return shell(begin + "COMP_WORDS=(" + words + "); COMP_CWORD=" + std::to_string(at) +
                 "; _tangram; echo \"${COMPREPLY[*]}\"");
  };
  EXPECT_EQ(completed("tangram ver", 1), "verify\n");
  EXPECT_EQ(completed("tangram plan --seq", 2), "--seqlen --sequences\n");
  EXPECT_EQ(completed("tangram simulate --spi", 2), "--spine\n");
  EXPECT_EQ(completed("tangram help comp", 2), "completion\n");
  const TempFolder folder;
  const std::string file = folder.write("mask_of_a_test.json", "");
  EXPECT_EQ(completed("tangram plan --mask " + folder.path("mask_of"), 3), file + "\n");
  EXPECT_THAT(run_program({"completion", "--shell", "fish"}).out,
              HasSubstr("complete -c tangram -n '__fish_seen_subcommand_from plan' -l mask -r -F\n"));
  EXPECT_THAT(run_program({"completion", "--shell", "zsh"}).out, StartsWith("autoload -U +X bashcompinit"));
  EXPECT_THAT(run_program({"completion", "--shell", "csh"}).err, HasSubstr("--shell: must be bash, zsh or fish"));
}

TEST(Conveniences, ErrorsNameNoFunctions) {
  const TempFolder folder;
  const std::string twice = folder.write(
      "mask.json",
      R"({"seqlen": 8, "q_ranges": [[0, 8], [0, 8]], "k_ranges": [[0, 8], [0, 8]], "attn_types": [0, 0]})");
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--family", "causal", "--seqlen", "64", "--heads-q", "3", "--strategy", "ulysses"},
        {"--family", "causal", "--seqlen", "64", "--strategy", "usp", "--ulysses-degree", "3"},
        {"--cu-seqlens", "0,9,5"},
        {"--cu-seqlens", "3,9"},
        {"--family", "prefix_lm", "--seqlen", "64", "--prefix", "99"},
        {"--mask", twice}}) {
    std::vector<std::string> command = args;
    command.insert(command.begin(), "plan");
    const ProgramResult result = run_program(command);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, ::testing::ContainsRegex("^tangram: ")) << result.err;
    EXPECT_THAT(result.err, Not(::testing::ContainsRegex("tangram: [a-z]+_[a-z_]+: "))) << result.err;
    EXPECT_THAT(result.err, Not(::testing::ContainsRegex("tangram: [A-Z][a-z]+: "))) << result.err;
  }
}

TEST(Conveniences, PlansPriceTheKernelsOfTheirMachine) {
  EXPECT_EQ(plan_of({"--family", "causal", "--seqlen", "1024"})["kv_row_bytes"], 8 * 256 * 2);
  EXPECT_EQ(plan_of({"--family", "causal", "--seqlen", "1024", "--dtype", "fp32"})["kv_row_bytes"], 8 * 256 * 4);
  // Machine file with these constants as those of a CPU, whose kernels are of float32.
  std::string machine = read_all(std::string(TANGRAM_TEST_DATA) + "/../../docs/results/data/machine_h200.json");
  for (const auto& [gpu, cpu] : {std::pair("sm90", "cpu"), std::pair("bfloat16", "float32")}) {
    for (size_t at = machine.find(gpu); at != std::string::npos; at = machine.find(gpu)) {
      machine.replace(at, std::string(gpu).size(), cpu);
    }
  }
  const TempFolder folder;
  const std::string file = folder.write("cpu.json", machine);
  EXPECT_EQ(plan_of({"--family", "causal", "--seqlen", "1024", "--machine", file})["kv_row_bytes"], 8 * 256 * 4);
}

// Both move the same rows; simulate also counts the tiles that a mask cuts (docs/guide/cli.md).
TEST(Conveniences, PlansAndSimulationsAgreeWhereTilesAreWhole) {
  const auto ratio = [](std::vector<std::string> mask) {
    mask.insert(mask.end(), {"--cp-size", "8", "--heads-q", "64", "--heads-kv", "8", "--json"});
    const nlohmann::json planned = plan_of(std::vector<std::string>(mask.begin(), mask.end() - 1))["predicted"];
    mask.insert(mask.begin(), {"simulate", "--strategies", "tangram"});
    const nlohmann::json simulated = nlohmann::json::parse(run_program(mask).out)["predictions"][0];
    EXPECT_NEAR(planned["exposed_s"].get<double>(), simulated["exposed_s"].get<double>(), 1e-3);
    return (planned["forward_s"].get<double>() + planned["backward_s"].get<double>()) /
           simulated["step_s"].get<double>();
  };
  EXPECT_NEAR(ratio({"--family", "causal", "--seqlen", "32K"}), 1, 0.04);
  EXPECT_NEAR(ratio({"--family", "full", "--seqlen", "64K"}), 1, 0.04);
  EXPECT_LT(ratio({"--family", "sliding_window", "--seqlen", "128K"}), 0.9);
}

// What docs/tutorials/02_context_parallel.md says of when to set it.
TEST(Conveniences, AutoExchangesHeadsWhereEachHasItsOwnKeys) {
  std::vector<std::string> args{"--family", "causal", "--seqlen", "32K", "--cp-size", "8", "--heads-q", "32"};
  const auto step = [&](const char* strategy) {
    std::vector<std::string> of_strategy = args;
    of_strategy.insert(of_strategy.end(), {"--strategy", strategy});
    const nlohmann::json json = plan_of(of_strategy);
    return std::pair(json["strategy"].get<std::string>(),
                     json["predicted"]["forward_s"].get<double>() + json["predicted"]["backward_s"].get<double>());
  };
  EXPECT_NE(step("auto").first, "tangram");
  EXPECT_LT(step("auto").second, 0.95 * step("tangram").second);
  args.insert(args.end(), {"--heads-kv", "4"});
  EXPECT_GT(step("auto").second, 0.98 * step("tangram").second);
}

TEST(Conveniences, AutoPlansMasksOfHeadGroups) {
  const TempFolder folder;
  const std::string one = R"({"seqlen": 64, "q_ranges": [[0, 64]], "k_ranges": [[0, 64]], "attn_types": [)";
  const std::string file = folder.write("heads.json", R"({"head_masks": [)" + one + "0]}, " + one + "1]}]}");
  const nlohmann::json json = plan_of({"--mask", file, "--strategy", "auto", "--cp-size", "2"});
  EXPECT_EQ(json["strategy"], "tangram");
}

TEST(Conveniences, LogsHearOfLongWorkNowAndThen) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar(4, "comparing with the reference", 0.5);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    bar.advance(1);
    bar.advance(1);  // within half a second of the line before
  }
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines,
              ::testing::ContainsRegex("^tangram: comparing with the reference: 25 % after [0-9]+ s, [0-9]+ s left\n"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar(4, "computing");
    bar.advance(2);  // nothing of work that takes no time
    const WaitNotice quiet("planning 64 tokens over 2 ranks");
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  {
    const WaitNotice notice("planning 1,048,576 tokens over 64 ranks", 0.05);
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::ContainsRegex("^tangram: planning 1,048,576 tokens over 64 ranks: [0-9]+ s so far\n"));
}

}  // namespace
}  // namespace tangram::cli
