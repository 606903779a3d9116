// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Env is read once per process, so each case runs in a child of its own.
#include "tangram/env.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tangram/error.hpp"

namespace tangram {
namespace {

// Runs `check` in a fresh process with the variable set; the child exits with 0 iff it returns true.
template <class Check>
void expect_in_child(const char* name, const char* value, Check check) {
  EXPECT_EXIT(
      {
        setenv(name, value, 1);
        std::exit(check() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

bool throws_invalid_argument() {
  try {
    Env::get();
  } catch (const InvalidArgument&) {
    return true;
  }
  return false;
}

TEST(EnvDeathTest, ReadsValues) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  expect_in_child("TANGRAM_TIMEOUT_S", "2.5", [] { return Env::get().timeout_s == 2.5; });
  expect_in_child("TANGRAM_NUM_THREADS", "3", [] { return Env::get().num_threads == 3; });
  expect_in_child("TANGRAM_SANITY_CHECK", "1", [] { return Env::get().sanity_check; });
  expect_in_child("TANGRAM_NCCL_LIBRARY", "/opt/nccl.so", [] { return Env::get().nccl_library == "/opt/nccl.so"; });
  expect_in_child("TANGRAM_NCCL_LIBRARY", "", [] { return Env::get().nccl_library == "libnccl.so.2"; });
  expect_in_child("TANGRAM_BATCH_COPIES", "0", [] { return !Env::get().batch_copies; });
  expect_in_child("TANGRAM_BATCH_COPIES", "", [] { return Env::get().batch_copies; });
  expect_in_child("TANGRAM_NODE_ID", "node 3", [] { return Env::get().node_id == "node 3"; });
  expect_in_child("TANGRAM_ADDRESS", "tcp:a:29400", [] { return Env::get().address == "tcp:a:29400"; });
  expect_in_child("TANGRAM_CPU_ISA", "avx2", [] { return Env::get().cpu_isa == "avx2"; });
}

TEST(EnvDeathTest, RefusesValuesThatMeanNothing) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  expect_in_child("TANGRAM_TIMEOUT_S", "soon", throws_invalid_argument);
  expect_in_child("TANGRAM_TIMEOUT_S", "-1", throws_invalid_argument);
  expect_in_child("TANGRAM_NUM_THREADS", "2.5", throws_invalid_argument);
  expect_in_child("TANGRAM_SANITY_CHECK", "yes", throws_invalid_argument);
  expect_in_child("TANGRAM_BATCH_COPIES", "maybe", throws_invalid_argument);
  expect_in_child("TANGRAM_CPU_ISA", "mmx", throws_invalid_argument);
  expect_in_child("TANGRAM_SECRET", "0123456789", throws_invalid_argument);
  expect_in_child("TANGRAM_ADDRESS", "a:29400", throws_invalid_argument);
  expect_in_child("TANGRAM_NODE_ID", std::string(64, 'n').c_str(), throws_invalid_argument);
}

TEST(EnvDeathTest, ListDoesNotShowTheSecret) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const char* secret = "0123456789abcdef";
  expect_in_child("TANGRAM_SECRET", secret, [secret] {
    for (const auto& variable : Env::list()) {
      if (variable.name == "TANGRAM_SECRET") return Env::get().secret == secret && variable.value == "(set)";
    }
    return false;
  });
}

TEST(EnvDeathTest, SetPutsOtherValuesInPlace) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  expect_in_child("TANGRAM_TIMEOUT_S", "2.5", [] {
    Env env = Env::get();
    env.num_threads = 3;
    Env::set(env);
    return Env::get().num_threads == 3 && Env::get().timeout_s == 2.5;
  });
}

TEST(EnvDeathTest, SetRefusesWhatAVariableCannotBe) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto is_refused = [](auto change) {
    Env env = Env::get();
    change(env);
    try {
      Env::set(env);
    } catch (const InvalidArgument&) {
      return Env::get().timeout_s == 2.5;
    }
    return false;
  };
  expect_in_child("TANGRAM_TIMEOUT_S", "2.5", [&] {
    return is_refused([](Env& env) { env.timeout_s = 0; }) && is_refused([](Env& env) { env.num_threads = -1; }) &&
           is_refused([](Env& env) { env.cpu_isa = "mmx"; });
  });
}

TEST(Env, ListNamesEveryVariableWithHelp) {
  const auto variables = Env::list();
  EXPECT_GE(variables.size(), 5u);
  for (const auto& variable : variables) {
    EXPECT_EQ(variable.name.rfind("TANGRAM_", 0), 0u);
    EXPECT_FALSE(variable.help.empty());
  }
}

}  // namespace
}  // namespace tangram
