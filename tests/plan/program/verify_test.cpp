// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <span>
#include <vector>

#include "plan/program/mutations.hpp"
#include "plan/program/program_cases.hpp"
#include "runtime/mask_families.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using ::testing::HasSubstr;
using testing::kStrategies;

using testing::Case;
using testing::kHarmful;
using testing::kMaybeHarmless;
using testing::kOnHost;
using testing::Mutant;
using testing::NamedMutation;
using testing::Random;
using testing::random_case;

StepPrograms programs_of(const Case& of) { return step_programs(*of.plan, of.call, of.target, of.kept); }

TEST(Verify, ProgramsOfRandomPlansAndCallsHaveNoFaults) {
  const uint32_t count = static_cast<uint32_t>(support::rounds(5000, 300));
  for (uint32_t seed = 0; seed < count; ++seed) {
    Random random(seed);
    const Case of = random_case(random);
    SCOPED_TRACE(::testing::Message() << of.text << ", seed " << seed);
    EXPECT_NO_THROW(verify(*of.plan, of.call, programs_of(of)));
  }
}

TEST(Verify, ProgramsOfEveryFamilyOfMasksHaveNoFaults) {
  support::Sample sample(5);
  for (const testing::NamedMask& family : testing::mask_families()) {
    for (const Strategy strategy : kStrategies) {
      for (const int cp_size : {2, 4, 8}) {
        if (!sample.takes_next()) continue;
        SCOPED_TRACE(::testing::Message() << family.name << ", " << to_string(strategy) << " on " << cp_size);
        const auto plan =
            testing::plan_of(family.mask, testing::heads_of(cp_size, 1, 8, 8), cp_size, {strategy, 0, 0, {}});
        const CallShape call = CallShape::with_results(DType::kFloat32, DType::kFloat32);
        EXPECT_NO_THROW(verify(*plan, call, step_programs(*plan, call, kOnHost, false)));
      }
    }
  }
}

bool is_caught(const Mutant& mutant) {
  try {
    verify(*mutant.of.plan, mutant.of.call, mutant.programs);
    return false;
  } catch (const InvalidArgument&) {
    return true;
  }
}

struct Caught {
  int made = 0, caught = 0;

  void add(bool found) {
    ++made;
    caught += found ? 1 : 0;
  }
};

/// At least `wanted` mutations of these kinds, of random programs; prints how many of each kind were caught.
Caught mutate_programs(std::span<const NamedMutation> kinds, int wanted, uint32_t first_seed) {
  Caught all;
  std::vector<Caught> of_kind(kinds.size());
  const auto lacks_a_kind = [&] {
    return std::any_of(of_kind.begin(), of_kind.end(), [](const Caught& kind) { return kind.made == 0; });
  };
  const uint32_t last_seed = first_seed + static_cast<uint32_t>(wanted);
  for (uint32_t seed = first_seed; all.made < wanted || (lacks_a_kind() && seed < last_seed); ++seed) {
    Random of_case(seed), random(seed + 1'000'000);
    const Case of = random_case(of_case);
    for (size_t i = 0; i < kinds.size(); ++i) {
      Mutant mutant{programs_of(of), random, of};
      mutant.backward = random.coin();
      mutant.rank = static_cast<size_t>(random.draw(0, of.plan->cp_size() - 1));
      if (!kinds[i].mutate(mutant)) continue;
      const bool found = is_caught(mutant);
      all.add(found);
      of_kind[i].add(found);
    }
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    std::cout << kinds[i].name << ": " << of_kind[i].caught << " of " << of_kind[i].made << "\n";
    EXPECT_GT(of_kind[i].made, 0) << kinds[i].name;
  }
  std::cout << "caught in all: " << all.caught << " of " << all.made << "\n";
  return all;
}

TEST(Verify, HarmfulMutationsAreCaught) {
  const Caught result = mutate_programs(kHarmful, support::rounds(10'000, 600), 0);
  EXPECT_EQ(result.caught, result.made);
}

// Counted apart: missed mutations do no harm.
TEST(Verify, MostMutationsThatMayBeHarmlessAreCaught) {
  const Caught result = mutate_programs(kMaybeHarmless, support::rounds(2'000, 150), 0);
  EXPECT_GE(result.caught * 100, result.made * 90);
}

TEST(Verify, SaysRankOperationAndFault) {
  const auto plan =
      testing::plan_of(causal_mask(24, 24), testing::heads_of(2, 1, 8, 8), 2, {Strategy::kRing, 0, 0, {}});
  const CallShape call = CallShape::with_results(DType::kFloat32, DType::kFloat32);
  StepPrograms programs = step_programs(*plan, call, kOnHost, false);
  for (Program& program : programs.forward) {
    std::erase_if(program.ops, [](const Op& op) { return std::holds_alternative<WaitOp>(op); });
  }
  try {
    verify(*plan, call, programs);
    FAIL() << "a ring that does not wait";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("(got forward pass, rank 0, operation 2 (attend): uses rows that cast 0 brings, "
                          "which was not waited for)"));
  }
}

}  // namespace
}  // namespace tangram
