// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Rings on streams, whose blocks land in memory of earlier ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "plan/program/arena.hpp"
#include "plan/program/program_cases.hpp"
#include "plan/program/verify.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRowsOfRank = 16;

CallShape plain_call() { return CallShape::with_results(DType::kFloat32, DType::kFloat32); }

ProgramTarget target_of(int ring_buffer_steps) {
  ProgramTarget target;
  target.ring_buffer_steps = ring_buffer_steps;
  return target;
}

std::shared_ptr<const Plan> ring_plan(int cp_size, Strategy strategy = Strategy::kRing) {
  const int64_t rows = kRowsOfRank * cp_size;
  return testing::plan_of(causal_mask(rows, rows), {2, 2, 8, 8, DType::kFloat32}, cp_size, {strategy, 0, 0, {}});
}

struct ArenaBytes {
  int64_t forward, backward;
  friend bool operator==(const ArenaBytes&, const ArenaBytes&) = default;
};

ArenaBytes arena_bytes(const Plan& plan, int ring_buffer_steps) {
  const ProgramTarget target = target_of(ring_buffer_steps);
  return {lay_out_arena(forward_program(plan, 0, plain_call(), target)).arena_bytes,
          lay_out_arena(backward_program(plan, 0, plain_call(), target, false)).arena_bytes};
}

TEST(Rings, TakeAsMuchMemoryOnAnyNumberOfRanks) {
  constexpr int64_t kBlock = 2 * kRowsOfRank * 2 * 8 * sizeof(float);  // K and V, or their gradients
  for (const int ring_buffer_steps : {0, 1, 2}) {
    SCOPED_TRACE(ring_buffer_steps);
    for (const int cp_size : {4, 8, 64}) {
      const ArenaBytes bytes = arena_bytes(*ring_plan(cp_size), ring_buffer_steps);
      EXPECT_EQ(bytes.forward, (2 + ring_buffer_steps) * kBlock) << cp_size;
      // Gradients: sent ones, and received ones.
      EXPECT_EQ(bytes.backward, (2 + ring_buffer_steps + 1 + 1 + ring_buffer_steps) * kBlock) << cp_size;
    }
  }
}

// Over several nodes a transport takes stages in ascending order alone.
TEST(Rings, StagesAreNumberedInTheOrderInWhichCastsBegin) {
  const auto plan = ring_plan(4);
  const Program program = backward_program(*plan, 0, plain_call(), target_of(1), false);
  const ArenaLayout layout = lay_out_arena(program);
  ASSERT_EQ(layout.stages.size(), program.casts.size());
  int next = 0;
  std::vector<int> numbers;
  for (const Op& op : program.ops) {
    const auto* cast = std::get_if<GroupCastOp>(&op);
    if (cast == nullptr) continue;
    numbers.push_back(cast->cast);
    EXPECT_EQ(layout.stages[static_cast<size_t>(cast->cast)].number, next++);
  }
  EXPECT_FALSE(std::is_sorted(numbers.begin(), numbers.end())) << "keys and gradients move in turns";
}

TEST(Rings, HaveMemoryForEachBlockWhereATransportGivesNoCredits) {
  constexpr int64_t kBlock = 2 * kRowsOfRank * 2 * 8 * sizeof(float);
  for (const int cp_size : {4, 8}) {
    const ArenaBytes bytes = arena_bytes(*ring_plan(cp_size), -1);
    EXPECT_EQ(bytes, (ArenaBytes{cp_size * kBlock, 3 * cp_size * kBlock}));
  }
}

TEST(Rings, OfRingsTakeAsMuchMemoryForAnyNumberOfRounds) {
  const auto bytes_of = [](int cp_size, int ring_size) {
    const int64_t rows = kRowsOfRank * cp_size;
    const auto plan = testing::plan_of(causal_mask(rows, rows), {2, 2, 8, 8, DType::kFloat32}, cp_size,
                                       {Strategy::kLoongTrain, 1, ring_size, {}});
    return arena_bytes(*plan, 1);
  };
  for (const int ring_size : {2, 4}) EXPECT_EQ(bytes_of(8 * ring_size, ring_size), bytes_of(4 * ring_size, ring_size));
}

TEST(Rings, OfSubGroupsTakeAsMuchMemoryOnAnyNumberOfRanks) {
  const auto bytes_of = [](int cp_size) {
    return arena_bytes(*ring_plan(cp_size, Strategy::kHybridCp), 1);  // one document, on all ranks
  };
  const ArenaBytes eight = bytes_of(8);
  for (const int cp_size : {16, 32}) EXPECT_EQ(bytes_of(cp_size), eight) << cp_size;
}

TEST(Rings, HaveNoFaults) {
  for (const Strategy strategy : {Strategy::kRing, Strategy::kUsp, Strategy::kLoongTrain, Strategy::kHybridCp}) {
    for (const int cp_size : {2, 3, 4, 5, 6, 8, 12}) {
      for (const int ring_buffer_steps : {-1, 0, 1, 2}) {
        for (const bool kept : {false, true}) {
          const int64_t rows = kRowsOfRank * cp_size;
          const auto plan = testing::plan_of(causal_mask(rows, rows), testing::heads_of(cp_size, 1, 8, 8), cp_size,
                                             {strategy, 0, 0, {}});
          if (kept && !can_keep(*plan)) continue;
          SCOPED_TRACE(::testing::Message() << to_string(strategy) << " on " << cp_size << ", " << ring_buffer_steps);
          EXPECT_NO_THROW(
              verify(*plan, plain_call(), step_programs(*plan, plain_call(), target_of(ring_buffer_steps), kept)));
        }
      }
    }
  }
}

/// The fault that verify finds once `change` has changed the programs of all ranks.
template <class Change>
std::string fault(bool backward, int ring_buffer_steps, const Change& change) {
  const auto plan = ring_plan(6);
  StepPrograms programs = step_programs(*plan, plain_call(), target_of(ring_buffer_steps), false);
  for (Program& program : backward ? programs.backward : programs.forward) change(program);
  try {
    verify(*plan, plain_call(), programs);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

size_t first_give(const Program& program) {
  for (size_t op = 0; op < program.ops.size(); ++op) {
    if (std::holds_alternative<ReleaseCreditOp>(program.ops[op])) return op;
  }
  ADD_FAILURE() << "no credit is given";
  return 0;
}

TEST(Rings, ThatBreakTheRulesOfCreditsAreRefused) {
  for (const bool backward : {false, true}) {
    for (const int ring_buffer_steps : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << backward << " " << ring_buffer_steps);
      EXPECT_THAT(fault(backward, ring_buffer_steps, [](Program& p) { p.ops.erase(p.ops.begin() + first_give(p)); }),
                  HasSubstr("has not said that memory is free"));
      EXPECT_THAT(fault(backward, ring_buffer_steps,
                        [](Program& p) { std::swap(p.ops[first_give(p)], p.ops[first_give(p) - 1]); }),
                  ::testing::AnyOf(HasSubstr("another one still reads"), HasSubstr("which was not waited for")));
      // At the begin of the pass.
      EXPECT_NE(fault(backward, ring_buffer_steps,
                      [](Program& p) {
                        const auto give = p.ops.begin() + static_cast<std::ptrdiff_t>(first_give(p));
                        std::rotate(p.ops.begin(), give, give + 1);
                      }),
                "none");
    }
  }
}

// A rank that is behind: its sender waits, for ever if the credit never comes.
TEST(Rings, WaitForTheCreditOfTheRankThatReceives) {
  const auto plan = ring_plan(6);
  StepPrograms programs = step_programs(*plan, plain_call(), target_of(1), false);
  Program& program = programs.forward[3];
  const int cast = std::get<ReleaseCreditOp>(program.ops[first_give(program)]).cast;
  program.ops.erase(program.ops.begin() + static_cast<std::ptrdiff_t>(first_give(program)));
  const auto table = std::make_shared<Exchange>(*program.casts[static_cast<size_t>(cast)].items[0].exchange);
  table->recvs.clear();  // else the rank itself would be refused
  for (GroupCastTensor& item : program.casts[static_cast<size_t>(cast)].items) item.exchange = table;
  try {
    verify(*plan, plain_call(), programs);
    FAIL() << "a ring without a credit";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), ::testing::AnyOf(HasSubstr("(group_cast) waits for ever"), HasSubstr("has written")));
  }
}

}  // namespace
}  // namespace tangram
