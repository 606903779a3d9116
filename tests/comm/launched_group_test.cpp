// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that find each other by what torchrun and Slurm tell them; mpirun: mpi/mpi_suite.cpp.
#include "comm/launched_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "comm/all_gather.hpp"
#include "comm/process_group.hpp"
#include "tangram/env.hpp"

namespace tangram::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_processes;
using testing::TemporaryFolder;

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

void expect_ranks_meet(const std::function<void(int rank)>& set_launcher, const std::string& launcher) {
  const TemporaryFolder folder;
  const auto outcomes = run_processes(3, [&](int rank) {
    set_launcher(rank);
    Env env = Env::get();  // which this process may have read before
    env.address = "unix:" + folder.path();
    Env::set(env);
    EXPECT_TRUE(LaunchedGroup::is_launched());
    EXPECT_EQ(Env::launch().launcher, launcher);
    EXPECT_EQ(Env::launch().local_rank, rank % 2);
    LaunchedGroup group;
    EXPECT_EQ(group.communicator().rank(), rank);
    EXPECT_THAT(all_gather(group.communicator(), rank, "ranks"), ElementsAre(0, 1, 2));
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.error_text, "");
  }
}

TEST(LaunchedGroup, MeetsByWhatTorchrunSays) {
  expect_ranks_meet(
      [](int rank) {
        set("TORCHELASTIC_RUN_ID", "none");
        set("RANK", std::to_string(rank));
        set("WORLD_SIZE", "3");
        set("LOCAL_RANK", std::to_string(rank % 2));
      },
      "torchrun");
}

TEST(LaunchedGroup, MeetsByWhatSlurmSays) {
  expect_ranks_meet(
      [](int rank) {
        set("SLURM_STEP_ID", "0");
        set("SLURM_STEP_NUM_TASKS", "3");
        set("SLURM_PROCID", std::to_string(rank));
        set("SLURM_LOCALID", std::to_string(rank % 2));
      },
      "slurm");
}

TEST(LaunchedGroup, ABatchScriptOfSlurmIsNoTask) {
  const auto outcome = run_processes(1, [](int) {
    set("SLURM_PROCID", "0");
    set("SLURM_NTASKS", "8");
    EXPECT_FALSE(LaunchedGroup::is_launched());
    set("SLURM_STEP_ID", "4294967290");  // an interactive shell
    set("SLURM_STEP_NUM_TASKS", "1");
    EXPECT_FALSE(LaunchedGroup::is_launched());
  });
  EXPECT_EQ(outcome[0].exit_code, 0);
}

TEST(LaunchedGroup, VariablesThatContradictEachOtherAreRefused) {
  const auto error_of = [](const char* rank, const char* size) {
    return run_processes(1,
                         [&](int) {
                           set("TORCHELASTIC_RUN_ID", "none");
                           set("RANK", rank);
                           set("WORLD_SIZE", size);
                           set("LOCAL_RANK", "0");
                           static_cast<void>(Env::launch());
                         })[0]
        .error_text;
  };
  EXPECT_EQ(error_of("0", "3"), "");
  EXPECT_THAT(error_of("3", "3"), HasSubstr("RANK must be below WORLD_SIZE"));
  EXPECT_THAT(error_of("1.5", "3"), HasSubstr("RANK must be a whole number (got 1.5)"));
  EXPECT_THAT(error_of("", "3"), HasSubstr("RANK must be set with the other variables of its launcher"));
}

TEST(LaunchedGroup, WithoutAnAddressTheRemedyIsNamed) {
  const auto outcome = run_processes(1, [](int) {
    set("TORCHELASTIC_RUN_ID", "none");
    set("RANK", "0");
    set("WORLD_SIZE", "2");
    set("LOCAL_RANK", "0");
    LaunchedGroup();
  });
  EXPECT_EQ(outcome[0].error_type, "InvalidArgument");
  EXPECT_THAT(outcome[0].error_text, HasSubstr("under torchrun TANGRAM_ADDRESS must say"));
}

}  // namespace
}  // namespace tangram::comm
