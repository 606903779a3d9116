// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/error.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/require.hpp"

namespace tangram {
namespace {

TEST(Error, KnowsItsFunction) {
  const InvalidArgument named("make_plan: cp_size must be positive (got cp_size: 0)");
  EXPECT_EQ(named.function(), "make_plan");
  EXPECT_EQ(named.requirement(), "cp_size must be positive (got cp_size: 0)");
  const InvalidArgument of_class("Dispatch::rows_of_rank: rank must lie in [0, 2) (got 3)");
  EXPECT_EQ(of_class.function(), "Dispatch::rows_of_rank");
  const InvalidArgument again("PlanCache.get", named.requirement());
  EXPECT_EQ(again.function(), "PlanCache.get");
  EXPECT_EQ(again.requirement(), named.requirement());
  EXPECT_STREQ(again.what(), "PlanCache.get: cp_size must be positive (got cp_size: 0)");
}

TEST(Error, WithoutFunctionIsAllRequirement) {
  for (const std::string text :
       {"rank 3 gave up: no answer", "--html: needs a value", "/tmp/a_b: is no file", "", "x:"}) {
    const CommError error(text);
    EXPECT_EQ(error.function(), "") << text;
    EXPECT_EQ(error.requirement(), text);
  }
}

TEST(Error, KeepsItsFunctionWhenCopied) {
  try {
    require(false, "{}: rows must be {} (got {})", "f", 1, 2);
  } catch (const InvalidArgument& error) {
    const InvalidArgument copy = error;
    EXPECT_EQ(copy.function(), "f");
    EXPECT_EQ(copy.requirement(), "rows must be 1 (got 2)");
  }
}

}  // namespace
}  // namespace tangram
