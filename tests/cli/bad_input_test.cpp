// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a user gets for input that cannot be right: a message that names it, and exit code 2, before anything runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

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
      {{},
       "tangram: needs a verb: plan, run, verify, bench, simulate, doctor, kernels, completion; see tangram --help"},
      {{"plan", "--family", "causal", "--seqlen", "64", "--seqlen", "128"},
       "--seqlen: must be given once (got 2 values)"},
      {{"doctor", "--measure"}, "--measure: needs a value (FILE); see tangram doctor --help"},
      {{"planx"}, "unknown verb 'planx'; there are plan, run,"},
      {{"plan", "--bogus"}, "--bogus: plan has no such option; see tangram plan --help"},
      {{"plan", "--familly", "causal"}, "(did you mean '--family'?)"},
      {{"plan", "--head-ranks", "2"}, "--head-ranks: was renamed: use --ulysses-degree N"},
      {{"simulate", "--inner-ring=2"}, "--inner-ring: was renamed: use --inner-ring-size N"},
      {{"plan", "--on-gpus"}, "--on-gpus: was renamed: use --target gpu"},
      {{"verify", "--family", "causal", "--out-dir=x"}, "--out-dir: not an option of verify, but of run"},
      {{"plan", "--family", "causal", "--seqlen", "64", "more"}, "plan: takes options only (got 'more')"},
      {{"plan"}, "needs a source"},
      {{"plan", "--family", "causal"}, "--family causal: needs a length: --seqlen N"},
      {{"plan", "--mask", ""}, "--mask: needs a value (got an empty one)"},
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

TEST(BadInput, IsRefusedRatherThanIgnored) {
  const TempFolder folder;
  const std::string mask = folder.write("mask.json", R"({"seqlen":64,"q_ranges":[[0,64]],"k_ranges":[[0,64]]})");
  const BadCase cases[] = {
      {{"plan", "--family", "causal", "--seqlen", "64", "--window", "3,0"}, "--window: needs --family sliding_window"},
      {{"plan", "--family", "causal", "--seqlen", "64", "--block", "8"}, "--block: needs --family block_causal"},
      {{"plan", "--family", "full", "--seqlen", "64", "--prefix", "8"}, "--prefix: needs --family prefix_lm"},
      {{"plan", "--family", "full", "--seqlen", "64", "--continuations", "8"}, "needs --family shared_prefix"},
      {{"plan", "--family", "full", "--seqlen", "64", "--global", "8"}, "--global: needs --family global_window"},
      {{"plan", "--mask", mask, "--window", "3,0"}, "--window: needs --family"},
      {{"plan", "--mask", mask, "--length-histogram", mask}, "--length-histogram: needs documents to draw"},
      {{"plan", "--cu-seqlens", "0,64", "--length-histogram", mask}, "--length-histogram: needs documents to draw"},
      {{"plan", "--family", "shared_prefix", "--seqlen", "64", "--prefix", "8", "--continuations", "8"},
       "--seqlen: follows from --prefix and --continuations (got 64)"},
      {{"run", "--family", "causal", "--seqlen", "64", "--transport", "nccl"}, "--transport: needs --gpus N"},
      {{"doctor", "--rows", "512"}, "--rows: goes with --measure"},
      {{"doctor", "--dtypes", "float32"}, "--dtypes: goes with --measure"},
      {{"doctor", "--measure", "m.json", "--rows", "0"}, "--rows: must lie in [256, 65536] (got 0)"},
      {{"doctor", "--measure", "m.json", "--gpus", "1", "--dtypes", "fp32"},
       "--dtypes: with --gpus must be bfloat16 or float16 (got float32)"},
      {{"doctor", "--measure", "m.json", "--gpus", "1", "--head-dims", "100"},
       "--head-dims: with --gpus must be multiples of 8 up to 256 (got 100)"},
      {{"bench", "--comm-only", "--plan-only"}, "--comm-only: cannot be combined with --plan-only"},
      {{"bench", "--comm-only", "--total-seqlen", "64"}, "--comm-only: takes no mask"},
      {{"run", "--family", "causal", "--seqlen", "64", "--repeat", "0"}, "--repeat: must lie in [1, 1000] (got 0)"},
      {{"run", "--family", "causal", "--seqlen", "64", "--seed", "-1"}, "--seed: must not be negative (got -1)"},
  };
  for (const BadCase& bad : cases) expect_refused(bad);
}

// 0 was taken for an option that is not given, "010" for 8, and a number beyond 64 bits for the largest.
TEST(BadInput, NumbersThatWouldBeReplacedAreRefused) {
  const std::vector<std::string> base{"run", "--family", "sliding_window"};
  const BadCase cases[] = {
      {{"--heads-q", "0"}, "--heads-q: must be positive (got 0)"},
      {{"--heads-kv", "0"}, "--heads-kv: must be positive (got 0)"},
      {{"--head-dim", "0"}, "--head-dim: must be positive (got 0)"},
      {{"--head-dim-v", "0"}, "--head-dim-v: must be positive (got 0)"},
      {{"--ulysses-degree", "0"}, "--ulysses-degree: must be positive (got 0)"},
      {{"--document-rows", "0"}, "--document-rows: must be positive (got 0)"},
      {{"--head-groups", "0"}, "--head-groups: must be positive (got 0)"},
      {{"--gpus", "0"}, "--gpus: must be positive (got 0)"},
      {{"--block", "-1"}, "--block: must not be negative (got -1)"},
      {{"--seqlen", "010x"}, "--seqlen: must be a whole number (got '010x')"},
      {{"--seqlen", "1e6"}, "--seqlen: must be a whole number (got '1e6')"},
      {{"--seqlen", "0x40"}, "--seqlen: must be a whole number (got '0x40')"},
      {{"--seed", "18446744073709551616"}, "--seed: must be a number of 64 bits (got 18446744073709551616)"},
      {{"--seqlen", "64", "--stages", "2,"}, "--stages: needs a number on either side of a comma (got '2,')"},
      {{"--seqlen", "64", "--window", "3,,0"}, "--window: needs a number on either side of a comma (got '3,,0')"},
      {{"--seqlen", "64", "--machine-backend", "abacus"}, "abacus"},
  };
  for (BadCase bad : cases) {
    bad.args.insert(bad.args.begin(), base.begin(), base.end());
    expect_refused(bad);
  }
  const ProgramResult decimal = run_program({"plan", "--family", "causal", "--seqlen", "0128"});
  EXPECT_EQ(decimal.code, 0) << decimal.err;
  EXPECT_THAT(decimal.out, HasSubstr("128 x 128 tokens"));
}

TEST(Help, EveryVerbShowsHowItIsUsed) {
  for (const std::string verb : {"plan", "run", "verify", "bench", "simulate", "doctor", "kernels"}) {
    const std::string help = run_program({verb, "--help"}).out;
    EXPECT_THAT(help, HasSubstr("Exit codes: 0 done")) << verb;
    EXPECT_THAT(help, HasSubstr("Examples:   tangram " + verb)) << verb;
  }
}

TEST(BadInput, IsOneLineWhateverItQuotes) {
  const TempFolder folder;
  const auto message = [&](const std::string& json) {
    return run_program({"plan", "--mask", folder.write("mask.json", json)}).err;
  };
  const std::string escapes = message(R"({"seqlen":64,"\u001b[2J\n":1})");
  EXPECT_THAT(escapes, HasSubstr("unknown key '?[2J?'"));
  EXPECT_EQ(std::count(escapes.begin(), escapes.end(), '\n'), 1);
  const std::string digits = message("{\"seqlen\":" + std::string(100'000, '1') + "}");
  EXPECT_THAT(digits, HasSubstr("number overflow"));
  EXPECT_LT(digits.size(), 500u);
}

TEST(BadInput, StandardOutputThatTakesNoMoreIsNotSuccess) {
  // A short text fails when it is flushed, a long one before.
  for (const char* args : {"plan --family causal --seqlen 64", "plan --total-seqlen 65536 --json", "plan --help"}) {
    const int status = std::system((std::string("'" TANGRAM_PROGRAM "' ") + args + " >/dev/full 2>/dev/null").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 2) << args;
  }
}

TEST(BadInput, OneMessageForAllRanksThatWouldHaveNoGpu) {
  // Without GPU code, without GPUs, or with fewer than 64 of them.
  for (const char* verb : {"run", "verify"}) {
    const ProgramResult result =
        run_program({verb, "--family", "causal", "--seqlen", "8192", "--heads-q", "1", "--gpus", "64"});
    EXPECT_EQ(result.code, 3);
    EXPECT_THAT(result.err, HasSubstr("--gpus: "));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(BadInput, Distribution) {
  const std::vector<std::string> base{"plan", "--family", "causal", "--seqlen", "1024"};
  const BadCase cases[] = {
      {{"--cp-size", "0"}, "--cp-size: must lie in [1, 65536] (got 0)"},
      {{"--cp-size", "-3"}, "--cp-size"},
      {{"--chunk-size", "0"}, "--chunk-size: must be positive (got 0)"},
      {{"--strategy", "Ring"}, "(got 'Ring') (did you mean 'ring'?)"},
      {{"--dispatch", "zig_zag"}, "(did you mean 'zigzag'?)"},
      {{"--movement", "aut"}, "(did you mean 'auto'?)"},
      {{"--launch-order", "copyengine"}, "(did you mean 'copy_engine'?)"},
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

// It planned for 65,536 ranks and then made twice as many threads.
TEST(BadInput, MoreRanksThanOneProcessHoldsAreRefusedBeforeTheyArePlanned) {
  for (const std::string verb : {"run", "verify", "bench"}) {
    expect_refused({{verb, "--family", "causal", "--seqlen", "65536", "--cp-size", "65536"},
                    "--cp-size: at most 1024 ranks can be threads of one process (got 65536)"});
  }
}

// They had no effect, without a message.
TEST(BadInput, ParametersOfOtherStrategiesAreRefusedRatherThanIgnored) {
  const std::vector<std::string> base{"plan", "--family", "causal", "--seqlen", "1024", "--cp-size", "4"};
  const BadCase cases[] = {
      {{"--ulysses-degree", "2"}, "--ulysses-degree: needs strategy usp or loong_train (got tangram)"},
      {{"--ulysses-degree", "2", "--strategy", "ulysses"}, "--ulysses-degree: needs"},
      {{"--inner-ring-size", "2", "--strategy", "usp"}, "--inner-ring-size: needs strategy loong_train (got usp)"},
      {{"--head-chunks", "1,1", "--strategy", "ulysses"}, "--head-chunks: needs strategy hcms (got ulysses)"},
      {{"--document-rows", "64", "--strategy", "ring"}, "--document-rows: needs strategy hybrid_cp (got ring)"},
      {{"--head-groups", "2"}, "--head-groups: needs a movement in which queries move (got kv)"},
  };
  for (BadCase bad : cases) {
    bad.args.insert(bad.args.begin(), base.begin(), base.end());
    expect_refused(bad);
  }
  for (const std::string strategy : {"usp", "loong_train"}) {
    std::vector<std::string> args = base;
    args.insert(args.end(), {"--ulysses-degree", "2", "--strategy", strategy});
    EXPECT_EQ(run_program(args).code, 0) << strategy;
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

// The report's folder was looked for when all was computed, and what had been measured was lost.
TEST(BadInput, AReportThatCannotBeWrittenIsRefusedBeforeTheStep) {
  const TempFolder folder;
  const std::vector<std::string> run{"run",       "--family", "causal",    "--seqlen",        "64", "--head-dim", "8",
                                     "--cp-size", "2",        "--out-dir", folder.path("out")};
  const auto with = [&](const std::string& option, const std::string& file) {
    std::vector<std::string> args = run;
    args.insert(args.end(), {option, file});
    return args;
  };
  for (const std::string option : {"--html", "--timeline"}) {
    expect_refused({with(option, "/no/such/folder/x"), option + ": cannot write '/no/such/folder/x'"});
    EXPECT_FALSE(std::filesystem::exists(folder.path("out/out.npy"))) << option;
  }
  const ProgramResult inside = run_program(with("--html", folder.path("out/report.html")));
  EXPECT_EQ(inside.code, 0) << inside.err;  // in a folder that the program makes itself
}

TEST(BadInput, AFolderThatWasMadeForNothingIsRemoved) {
  const TempFolder folder;
  const std::vector<std::string> refused{
      "run",       "--family",         "causal", "--seqlen",         "64", "--cp-size", "2",
      "--out-dir", folder.path("a/b"), "--html", "/no/such/folder/x"};
  EXPECT_EQ(run_program(refused).code, 2);
  EXPECT_FALSE(std::filesystem::exists(folder.path("a")));
  // Interrupted in the middle of a step that would take minutes.
  const std::string command = std::string("timeout -s INT 0.3 " TANGRAM_PROGRAM " run --family full --seqlen 65536 ") +
                              "--cp-size 2 --backend reference --out-dir " + folder.path("c/d") + " 2>/dev/null";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 124) << "the step was over before the interrupt";
  EXPECT_FALSE(std::filesystem::exists(folder.path("c")));
}

TEST(BadInput, AFileThatGrowsBeyondItsLimitLeavesNothing) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path("out"));
  const ProgramResult result = run_program(
      {"plan", "--family", "causal", "--seqlen", "4096", "--html", folder.path("out/report.html")}, "ulimit -f 4;");
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("cannot write"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("out")));
}

TEST(BadInput, OneFileForTwoReports) {
  const TempFolder folder;
  const std::string file = folder.path("x");
  for (std::vector<std::string> args : {std::vector<std::string>{"plan", "--save-plan", file, "--html", file},
                                        {"run", "--html", file, "--timeline", file},
                                        {"simulate", "--svg", file, "--html", file}}) {
    args.insert(args.end(), {"--family", "causal", "--seqlen", "64", "--head-dim", "8", "--cp-size", "2"});
    expect_refused({args, "must name different files"});
    EXPECT_FALSE(std::filesystem::exists(file)) << args.front();
  }
}

// Behaves as in Python, where the rows are padded.
TEST(BadInput, FewerTokensThanRanksAreNotButPadded) {
  const ProgramResult few = run_program({"verify", "--family", "causal", "--seqlen", "3", "--cp-size", "4"});
  EXPECT_EQ(few.code, 0) << few.err;
  const ProgramResult chunks = run_program(
      {"plan", "--family", "causal", "--seqlen", "1024", "--cp-size", "8", "--chunk-size", "256", "--json"});
  EXPECT_EQ(chunks.code, 0) << chunks.err;
}

TEST(BadInput, HelpAndVersionAreNot) {
  EXPECT_EQ(run_program({"help"}).out, run_program({"--help"}).out);
  EXPECT_EQ(run_program({"help", "plan"}).out, run_program({"plan", "--help"}).out);
  EXPECT_THAT(run_program({"help", "plna"}).err, HasSubstr("unknown verb 'plna'"));
  EXPECT_EQ(run_program({"help", "plan", "run"}).code, 2);
  EXPECT_EQ(run_program({"--help"}).code, 0);
  EXPECT_THAT(run_program({"--help"}).out, HasSubstr("Exit codes"));
  EXPECT_EQ(run_program({"--version"}).out, "tangram " TANGRAM_TEST_VERSION "\n");
  EXPECT_THAT(run_program({"plan", "--help"}).out, HasSubstr("--cu-seqlens"));
}

}  // namespace
}  // namespace tangram::cli
