// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Passes of a few operations, with times found by hand.
#include "plan/clock/clock.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/plan_times.hpp"
#include "plan/program/grid_plans.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::testing {
namespace {

using Op = Skeleton::Op;
constexpr auto kPost = Skeleton::Kind::kPost, kWait = Skeleton::Kind::kWait, kAttend = Skeleton::Kind::kAttend;

// Attention 0 while cast 0 moves, attention 1 with what it brings.
Skeleton one_cast() { return {{Op{kPost, 0}, Op{kAttend, 0}, Op{kWait, 0}, Op{kAttend, 1}}, {{1}}, 2}; }

ClockLoads loads_of(const Skeleton& skeleton, int num_ranks) {
  ClockLoads loads = empty_loads(skeleton, num_ranks, static_cast<int>(skeleton.casts.size()));
  for (size_t c = 0; c < skeleton.casts.size(); ++c) loads.load_of_cast[c] = static_cast<int>(c);
  return loads;
}

TEST(Clock, CastsHideBehindAttention) {
  const Skeleton skeleton = one_cast();
  ClockLoads loads = loads_of(skeleton, 2);
  loads.attend_s = {10, 10, 5, 5};
  loads.cast(0, 0).seconds = 7;   // of rank 0: there before it is wanted
  loads.cast(0, 1).seconds = 14;  // of rank 1: 4 too late
  const std::vector<RankTime> times = run_clock(skeleton, loads);
  EXPECT_EQ(times[0].total_s, 15);
  EXPECT_EQ(times[0].exposed_s(), 0);
  EXPECT_EQ(times[1].total_s, 19);
  EXPECT_EQ(times[1].busy_s, 15);
  EXPECT_EQ(slowest_of(times).exposed_s(), 4);
}

TEST(Clock, NothingHidesWhereThreadsMoveRowsThemselves) {
  const Skeleton skeleton = one_cast();
  ClockLoads loads = loads_of(skeleton, 1);
  loads.hides = false;
  loads.attend_s = {10, 5};
  loads.cast(0, 0).seconds = 7;
  EXPECT_EQ(run_clock(skeleton, loads)[0].total_s, 22);
  EXPECT_EQ(run_clock(skeleton, loads)[0].exposed_s(), 7);
}

TEST(Clock, ACastStartsWhenBothSidesHaveComeToIt) {
  const Skeleton skeleton = {{Op{kAttend, 0}, Op{kPost, 0}, Op{kWait, 0}}, {{0}}, 1};
  ClockLoads loads = loads_of(skeleton, 2);
  loads.attend_s = {1, 10};
  for (const size_t rank : {0, 1}) {
    loads.cast(0, rank).seconds = 2;
    loads.cast(0, rank).source = 1 - static_cast<int>(rank);
  }
  const std::vector<RankTime> times = run_clock(skeleton, loads);
  EXPECT_EQ(times[0].total_s, 12);
  EXPECT_EQ(times[1].total_s, 12);
  // With threads that move rows themselves too.
  loads.hides = false;
  EXPECT_EQ(run_clock(skeleton, loads)[0].total_s, 12);
}

TEST(Clock, ALinkCarriesOneCastAtATimeAndLinksWorkSideBySide) {
  const Skeleton skeleton = {{Op{kPost, 0}, Op{kPost, 1}, Op{kWait, 0}, Op{kWait, 1}}, {{0}, {1}}, 0};
  ClockLoads loads = loads_of(skeleton, 1);
  loads.cast(0, 0).seconds = 3;
  loads.cast(1, 0).seconds = 4;
  EXPECT_EQ(run_clock(skeleton, loads)[0].total_s, 7);
  loads.cast(1, 0).link = 1;
  EXPECT_EQ(run_clock(skeleton, loads)[0].total_s, 4);
}

TEST(Clock, NoRankWaitsForACastThatBringsNothing) {
  // The link is busy until 9; an empty cast behind it delays no rank.
  const Skeleton skeleton = {{Op{kPost, 0}, Op{kPost, 1}, Op{kWait, 1}, Op{kAttend, 0}, Op{kWait, 0}}, {{0}, {1}}, 1};
  ClockLoads loads = loads_of(skeleton, 1);
  loads.cast(0, 0).seconds = 9;
  loads.attend_s = {9};
  EXPECT_EQ(run_clock(skeleton, loads)[0].total_s, 9);
}

TEST(Clock, PackingDelaysItsCastAndUnpackingTheWaitingRank) {
  const Skeleton skeleton = one_cast();
  ClockLoads loads = loads_of(skeleton, 1);
  loads.attend_s = {4, 5};
  loads.cast(0, 0) = {.seconds = 7, .before_s = 2, .after_s = 3};
  // Packed at 2, there at 9 (attention ends at 6), unpacked at 12.
  const RankTime time = run_clock(skeleton, loads)[0];
  EXPECT_EQ(time.total_s, 17);
  EXPECT_EQ(time.exposed_s(), 3);
}

TEST(Clock, TraceHoldsWhatTheRanksAskedForDo) {
  const Skeleton skeleton = one_cast();
  ClockLoads loads = loads_of(skeleton, 2);
  loads.attend_s = {10, 10, 5, 5};
  loads.cast(0, 1) = {.seconds = 14, .after_s = 1};
  ClockTrace trace{{false, true}, {}};
  run_clock(skeleton, loads, &trace);
  ASSERT_EQ(trace.events.size(), 4u);
  const auto expect_event = [&](size_t index, ClockEvent::Kind kind, int step, double begin_s, double end_s) {
    const ClockEvent& event = trace.events[index];
    EXPECT_EQ(event.rank, 1);
    EXPECT_EQ(event.kind, kind);
    EXPECT_EQ(event.step, step);
    EXPECT_EQ(event.begin_s, begin_s);
    EXPECT_EQ(event.end_s, end_s);
  };
  expect_event(0, ClockEvent::Kind::kCast, 1, 0, 14);
  expect_event(1, ClockEvent::Kind::kAttend, 0, 0, 10);
  expect_event(2, ClockEvent::Kind::kMemory, 1, 14, 15);
  expect_event(3, ClockEvent::Kind::kAttend, 1, 15, 20);
}

// What a report draws ends where the prediction does, whatever the strategy.
TEST(PlanTimes, EndWithThePrediction) {
  for (const int cp_size : {1, 2, 4, 8}) {
    for (const Strategy strategy : {Strategy::kTangram, Strategy::kUlysses, Strategy::kHcms, Strategy::kRing,
                                    Strategy::kAllGather, Strategy::kUsp, Strategy::kLoongTrain, Strategy::kHybridCp}) {
      if (cp_size < 4 && (strategy == Strategy::kUsp || strategy == Strategy::kLoongTrain)) continue;
      const auto plan =
          plan_of(causal_mask(4096, 4096), {8, 8, 64, 64, DType::kBFloat16}, cp_size, {strategy, 0, 0, {}});
      for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
        ClockTrace trace;
        const std::vector<RankTime> times = plan_times(*plan, pass, &trace);
        const double predicted_s = pass == AttnPass::kForward ? plan->predicted.forward_s : plan->predicted.backward_s;
        ASSERT_EQ(std::ssize(times), cp_size) << to_string(strategy);
        EXPECT_EQ(slowest_of(times).total_s, predicted_s) << to_string(strategy);
        double end_s = 0;
        for (const ClockEvent& event : trace.events) end_s = std::max(end_s, event.end_s);
        EXPECT_EQ(end_s, predicted_s) << to_string(strategy);
        // One rank alone looks like that rank among all.
        ClockTrace last{std::vector<bool>(static_cast<size_t>(cp_size)), {}};
        last.ranks.back() = true;
        plan_times(*plan, pass, &last);
        const auto is_last = [&](const ClockEvent& event) { return event.rank == cp_size - 1; };
        EXPECT_EQ(std::ssize(last.events), std::ranges::count_if(trace.events, is_last)) << to_string(strategy);
        EXPECT_TRUE(std::ranges::all_of(last.events, is_last)) << to_string(strategy);
      }
    }
  }
}

}  // namespace
}  // namespace tangram::testing
