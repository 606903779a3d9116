// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/interrupt.hpp"

#include <gtest/gtest.h>

#include <string>

namespace tangram {
namespace {

struct Signal {};

int num_postponed = 0;

class InterruptTest : public ::testing::Test {
 protected:
  void TearDown() override { set_interrupt_hook({}); }

  static void throw_always() {
    set_interrupt_hook({[] { throw Signal(); }, [](const std::exception_ptr&) noexcept { ++num_postponed; }});
  }
};

TEST_F(InterruptTest, NothingHappensWithoutAHook) {
  check_interrupt();
  postpone_interrupt();
}

TEST_F(InterruptTest, ActionsRunBeforeTheStackUnwindsTheLatestFirst) {
  throw_always();
  std::string order;
  struct Unwound {
    std::string& order;
    ~Unwound() { order += "unwound"; }
  };
  const OnInterrupt outer([&] { order += "outer "; });
  {
    const OnInterrupt gone([&] { order += "gone "; });
  }
  try {
    const Unwound unwound{order};
    const OnInterrupt inner([&] { order += "inner "; });
    check_interrupt();
    FAIL() << "went on";
  } catch (const Signal&) {
  }
  EXPECT_EQ(order, "inner outer unwound");
}

TEST_F(InterruptTest, DestructorsPostponeIt) {
  throw_always();
  num_postponed = 0;
  int num_actions = 0;
  const OnInterrupt action([&] { ++num_actions; });
  postpone_interrupt();
  EXPECT_EQ(num_postponed, 1);
  EXPECT_EQ(num_actions, 1);
}

TEST_F(InterruptTest, ClocksAskNowAndThen) {
  throw_always();
  InterruptClock clock;
  clock.check();  // it was made just now
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(while (std::chrono::steady_clock::now() - begin < std::chrono::seconds(30)) clock.check(), Signal);
}

}  // namespace
}  // namespace tangram
