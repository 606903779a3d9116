// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that launchers start, on one machine: their variables by a stand-in. Over mpirun: step_verbs_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/gpu/gpu_step.hpp"
#include "cli/program.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr int kSize = 3;

/// Runs the program as each of the ranks that a launcher started, which `variables` sets from `$rank`. Returns rank 0's
/// exit status and what all of them printed.
ProgramResult launch(const std::string& variables, const std::vector<std::string>& args, int size = kSize) {
  const TempFolder folder;
  std::string command = "'" TANGRAM_PROGRAM "'";
  for (const std::string& arg : args) command += " '" + arg + "'";
  const std::string script =
      folder.write("launch", "for rank in $(seq 0 " + std::to_string(size - 1) + "); do\n  (\n    export " + variables +
                                 "\n    export TANGRAM_NUM_THREADS=1 TANGRAM_TIMEOUT_S=30\n    " + command +
                                 "; echo $? >" + folder.path("code") + "$rank\n  ) &\ndone\nwait\n");
  const std::string run = "sh " + script + " >" + folder.path("out") + " 2>" + folder.path("err") + " </dev/null";
  EXPECT_EQ(std::system(run.c_str()), 0);
  return {std::atoi(read_all(folder.path("code0")).c_str()), read_all(folder.path("out")),
          read_all(folder.path("err"))};
}

const std::string kTorchrun = "TORCHELASTIC_RUN_ID=none RANK=$rank WORLD_SIZE=3 LOCAL_RANK=0 TANGRAM_NODE_ID=$rank";
const std::string kSlurm =
    "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=$rank SLURM_LOCALID=0 TANGRAM_NODE_ID=$rank";

const std::vector<std::string> kStep{"--family", "causal",    "--seqlen", "384",        "--cp-size",
                                     "3",        "--heads-q", "2",        "--head-dim", "16"};
std::vector<std::string> step(const std::string& verb, const std::vector<std::string>& more = {}) {
  std::vector<std::string> args{verb};
  args.insert(args.end(), kStep.begin(), kStep.end());
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

class LaunchedRanks : public ::testing::TestWithParam<const char*> {
 protected:
  std::string variables() const {
    return (std::string(GetParam()) == "torchrun" ? kTorchrun : kSlurm) + " TANGRAM_ADDRESS=unix:" + folder_.path("");
  }
  TempFolder folder_;
};

TEST_P(LaunchedRanks, VerifyAStepTogether) {
  const ProgramResult result = launch(variables(), step("verify", {"--json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = Json::parse(result.out);  // printed by one rank only
  EXPECT_EQ(json["run"]["transport"], "socket");
  EXPECT_EQ(json["run"]["rows_received"], json["rows_moved"]);
  EXPECT_EQ(json["verification"]["ok"], true);
}

TEST_P(LaunchedRanks, AreMeasuredTogether) {
  const ProgramResult result = launch(variables(), step("bench", {"--repeat", "1"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(",cpu,socket,tangram,forward_time,s,"));
}

TEST_P(LaunchedRanks, OfAnotherNumberThanTheStepNeedsAreRefused) {
  std::vector<std::string> args = step("run");
  args[6] = "2";
  const ProgramResult result = launch(variables(), args);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr(std::string("--cp-size: must be the number of ranks that ") + GetParam() +
                                    " started (got 2 and 3)"));
}

INSTANTIATE_TEST_SUITE_P(Launchers, LaunchedRanks, ::testing::Values("torchrun", "slurm"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST(LaunchedRanks, OfSeveralNodesMeetByTcp) {
  // A port that others are not given by chance.
  const std::string variables = kSlurm + " TANGRAM_ADDRESS=tcp:127.0.0.1:" + std::to_string(20000 + ::getpid() % 12000);
  const ProgramResult strangers = launch(variables, step("run"), 1);
  EXPECT_EQ(strangers.code, 2) << "TCP without a secret";
  EXPECT_THAT(strangers.err, HasSubstr("TANGRAM_SECRET"));
  const ProgramResult result =
      launch(variables + " TANGRAM_SECRET=0123456789abcdef", {"bench", "--comm-only", "--repeat", "1"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(",socket,,link_rate,GB/s,"));
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("0123456789abcdef")));
}

TEST(LaunchedRanks, WithoutAnAddressAreToldTheRemedy) {
  for (const std::string& variables : {kTorchrun, kSlurm}) {
    const ProgramResult result = launch(variables, step("run"));
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr("TANGRAM_ADDRESS must say on all ranks where they meet: tcp:HOST:PORT"));
  }
}

TEST(LaunchedRanks, OneProcessOfTorchrunHasThreadsForRanks) {
  const ProgramResult result =
      launch("TORCHELASTIC_RUN_ID=none RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", step("run", {"--json"}), 1);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["run"]["transport"], "local");
}

TEST(LaunchedRanks, TakeTheGpuWithTheirNumberOnTheHostOrTheOnlyOneThatTheySee) {
  const Env::Launch third_of_node{"slurm", 11, 16, 3};
  EXPECT_EQ(gpu_of(third_of_node, 11, 8), 3);
  EXPECT_EQ(gpu_of(third_of_node, 11, 1), 0);
  EXPECT_EQ(gpu_of(third_of_node, 11, 2), 3) << "which is refused where GPUs are counted";
  EXPECT_EQ(gpu_of({}, 1, 1), 1) << "ranks that the program starts itself see all GPUs";
}

TEST(LaunchedRanks, AskForGpusWithTheOptionsOfGpus) {
  const auto refused = [](std::vector<std::string> args, const std::string& message) {
    const ProgramResult result = run_program(args);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr(message));
  };
  refused(step("run", {"--max-ctas", "4"}), "--max-ctas: needs --gpus N (got 4)");
  refused(step("bench", {"--transport", "nccl"}), "--transport: needs --gpus N (got 'nccl')");
  refused(step("bench", {"--gpus", "2", "--plan-only"}), "--plan-only: cannot be combined with --gpus");
  refused(step("bench", {"--gpus", "65"}), "--gpus: must lie in [1, 64] (got 65)");
}

}  // namespace
}  // namespace tangram::cli
