// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a DistMaskBuffer refuses: plans without room, ranks that differ, wrong calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/buffered_step.hpp"
#include "runtime/device/program_step.hpp"
#include "runtime/mask_families.hpp"
#include "tangram/dist_mask_buffer.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using counted::CountingControl;
using testing::BufferBackend;
using testing::capacity_of;
using ::testing::HasSubstr;
using testing::HostKernel;
using testing::HostRanks;
using testing::kStream;
using testing::kTolerance;
using testing::packs;
using testing::Plans;
using testing::RankStep;
using testing::Recording;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(DistMaskBuffer, PlansThatDoNotFitAreRefusedOnEveryRankAndChangeNothing) {
  StepOptions options;
  options.heads = testing::heads_of(2, 1, DType::kFloat32);
  const Plans plans = packs(1, 2, 240, options.heads);
  const auto causal = testing::plan_of(causal_mask(240, 240), options.heads, 2, 1, 1);
  const Plans others = {testing::plan_of(causal_mask(400, 400), options.heads, 2, 1, 1),
                        testing::plan_of(causal_mask(240, 240), testing::heads_of(4, 1, DType::kFloat32), 2, 1, 1)};
  const StepInputs inputs = testing::make_inputs(plans[0]->mask, options);
  const StepResults expected = testing::single_step(plans[0]->mask, options, inputs, testing::DenseBackend());
  const BufferBackend backend;
  const DistMaskCapacity needed = capacity_for(*causal);
  for (const char* name : {"kv_rows", "sent_rows", "local_ranges", "slices"}) {
    DistMaskCapacity capacity = capacity_of({plans[0], causal});
    int64_t& field = name == std::string("kv_rows")        ? capacity.kv_rows
                     : name == std::string("sent_rows")    ? capacity.sent_rows
                     : name == std::string("local_ranges") ? capacity.local_ranges
                                                           : capacity.slices;
    const DistMaskCapacity first = capacity_for(*plans[0]);
    const int64_t least = name == std::string("kv_rows")        ? needed.kv_rows
                          : name == std::string("sent_rows")    ? needed.sent_rows
                          : name == std::string("local_ranges") ? needed.local_ranges
                                                                : needed.slices;
    field = least - 1;
    HostRanks(2).run([&](CountingControl& control, DeviceCommunicator& communicator) {
      if (capacity_for(*plans[0]).kv_rows > capacity.kv_rows || first.sent_rows > capacity.sent_rows ||
          first.local_ranges > capacity.local_ranges || first.slices > capacity.slices) {
        return;  // the first pack wants as much
      }
      DistMaskBuffer buffer(*plans[0], capacity, communicator, backend);
      RankStep step(*plans[0], options, buffer);
      buffer.set(plans[0], kStream);
      EXPECT_THAT(error_of([&] { buffer.set(causal, kStream); }), HasSubstr(std::string("more ") + name));
      for (const auto& other : others) {
        EXPECT_THAT(error_of([&] { buffer.set(other, kStream); }), HasSubstr("must have the buffer's shape"));
      }
      EXPECT_EQ(buffer.num_plans(), 1);
      step.load(*plans[0], control.rank(), inputs);
      step.call(buffer);
      communicator.check();
      const StepResults results = step.results(*plans[0], control);
      if (control.rank() == 0) testing::expect_close(results, expected, kTolerance);
    });
  }
}

TEST(DistMaskBuffer, QueriesWithoutKeysAreRefusedOnEveryRankWhereThereAreToBeNone) {
  StepOptions options;
  options.heads = testing::heads_of(2, 1, DType::kFloat32);
  const Plans all_see = packs(1, 2, 240, options.heads);
  // The last queries, of one rank, see nothing.
  const auto padded = testing::plan_of(Mask(240, 240, {AttnSlice::causal({0, 230}, {0, 230})}), options.heads, 2, 1, 1);
  EXPECT_FALSE(capacity_for(*all_see[0]).allow_fully_masked_rows);
  EXPECT_TRUE(capacity_for(*padded).allow_fully_masked_rows);
  const BufferBackend backend;
  for (const AttnPasses passes : {AttnPasses::kBoth, AttnPasses::kForward}) {
    DistMaskCapacity capacity = capacity_of({all_see[0], padded});
    capacity.passes = passes;
    capacity.allow_fully_masked_rows = false;
    HostRanks(2).run([&](CountingControl&, DeviceCommunicator& communicator) {
      DistMaskBuffer buffer(*all_see[0], capacity, communicator, backend);
      buffer.set(all_see[0], kStream);
      EXPECT_THAT(error_of([&] { buffer.set(padded, kStream); }),
                  HasSubstr(passes == AttnPasses::kForward ? "no error" : "each query must see a key"));
      buffer.set(all_see[0], kStream);
      communicator.check();
    });
  }
}

/// Ranks set the plan from which their room was worked out.
void expect_room(const Mask& mask, int size, bool deterministic) {
  DistAttnConfig config;
  config.cp_size = size;
  config.heads = counted::kHeads;
  const auto plan = std::make_shared<const Plan>(make_plan(mask, config));
  DistMaskCapacity capacity = capacity_for(*plan);
  capacity.deterministic = deterministic;
  const Sm90Backend backend;
  std::mutex mutex;
  HostRanks(size).run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskBuffer buffer(*plan, capacity, communicator, backend);
    const std::string error = error_of([&] { buffer.set(plan, kStream); });
    const std::lock_guard lock(mutex);
    EXPECT_EQ(error, "no error") << "rank " << control.rank() << " of " << size;
  });
}

// A slice that crosses many tiles has a run in each.
TEST(DistMaskBuffer, LongSlicesFitTheRoomThatIsMadeForThem) {
  expect_room(sliding_window_mask(16384, Window{4096, 4096}), 8, false);
  expect_room(block_causal_mask(32768, 2048), 2, false);
}

// Runs of a window meet others that end and begin at every query tile.
TEST(DistMaskBuffer, DeterministicCallsOfAWindowFitTheRoomThatIsMadeForThem) {
  expect_room(sliding_window_mask(16384, Window{4096, 0}), 1, true);
  expect_room(sliding_window_mask(32768, Window{4096, 4096}), 2, true);
}

TEST(DistMaskBuffer, RanksThatDifferAreToldSo) {
  StepOptions options;
  options.heads = testing::heads_of(2, 1, DType::kFloat32);
  const Plans plans = packs(3, 2, 240, options.heads);
  const BufferBackend backend;
  HostRanks(2).run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskBuffer buffer(*plans[0], capacity_of(plans), communicator, backend);
    buffer.set(plans[0], kStream);
    const std::string error = error_of([&] {
      buffer.set(plans[control.rank() == 0 ? 1 : 2], kStream);
      for (int i = 0; i < 10000; ++i) {
        communicator.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    EXPECT_THAT(error, HasSubstr("masks differ (rank 0: "));
  });
}

// They meet, so that no rank has begun what others wait for.
TEST(DistMaskBuffer, UnderTheSanityCheckRanksThatDifferGoOn) {
  StepOptions options;
  options.heads = testing::heads_of(2, 1, DType::kFloat32);
  const Plans plans = packs(3, 2, 240, options.heads);
  const StepInputs inputs = testing::make_inputs(plans[0]->mask, options);
  const StepResults expected = testing::single_step(plans[0]->mask, options, inputs, testing::DenseBackend());
  const BufferBackend backend;
  HostRanks(2, true).run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskBuffer buffer(*plans[0], capacity_of(plans), communicator, backend);
    EXPECT_THAT(error_of([&] { buffer.set(plans[control.rank() == 0 ? 1 : 2], kStream); }),
                HasSubstr("masks differ (rank 0: "));
    buffer.set(plans[0], kStream);
    RankStep step(*plans[0], options, buffer);
    step.load(*plans[0], control.rank(), inputs);
    step.call(buffer);
    communicator.check();
    const StepResults results = step.results(*plans[0], control);
    if (control.rank() == 0) testing::expect_close(results, expected, kTolerance);
  });
}

// A rank that replays with the plan before has made no statement that could differ: kernels see it.
TEST(DistMaskBuffer, AReplayOfAnotherPlanThanThePeersIsFound) {
  StepOptions options;
  options.heads = testing::heads_of(2, 1, DType::kFloat32);
  const Plans plans = packs(2, 2, 240, options.heads);
  const StepInputs inputs = testing::make_inputs(plans[0]->mask, options);
  const BufferBackend backend;
  HostRanks(2).run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskBuffer buffer(*plans[0], capacity_of(plans), communicator, backend);
    RankStep step(*plans[0], options, buffer);
    buffer.set(plans[0], kStream);
    step.load(*plans[0], control.rank(), inputs);
    step.call(buffer);
    communicator.check();
    std::vector<HostKernel> graph;
    {
      const Recording capture(true);
      step.call(buffer);
      graph = capture.kernels();
    }
    control.barrier("captured");
    if (control.rank() == 0) buffer.set(plans[1], kStream);
    Recording::replay(graph);
    control.barrier("replayed");
    EXPECT_THAT(error_of([&] { communicator.check(); }), HasSubstr("every rank must make the same call"));
  });
}

TEST(DistMaskBuffer, RanksThatMakeRoomForDifferentPlansAreRefused) {
  StepOptions options;
  options.heads = testing::heads_of(2, 1, DType::kFloat32);
  const Plans plans = packs(2, 2, 240, options.heads);
  const BufferBackend backend;
  HostRanks(2).run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskCapacity capacity = capacity_of(plans);
    capacity.sent_rows += control.rank();
    EXPECT_THAT(error_of([&] { DistMaskBuffer(*plans[0], capacity, communicator, backend); }),
                HasSubstr("what there is room for"));
    capacity = capacity_of(plans);
    capacity.passes = control.rank() == 0 ? AttnPasses::kBoth : AttnPasses::kBackward;
    EXPECT_THAT(error_of([&] { DistMaskBuffer(*plans[0], capacity, communicator, backend); }),
                HasSubstr("passes must be both or forward"));
    DistMaskBuffer(*plans[0], capacity_of(plans), communicator, backend).set(plans[1], kStream);
    communicator.check();
  });
}

TEST(DistMaskBuffer, WrongCallsAreRefused) {
  StepOptions options;
  options.heads = testing::heads_of(2, 1, DType::kFloat32);
  const auto plan = testing::plan_of(causal_mask(240, 240), options.heads, 1, 1, 1);
  const BufferBackend backend;
  HostRanks(1).run([&](CountingControl& control, DeviceCommunicator& communicator) {
    const auto refuses = [&](const DistMaskCapacity& capacity, const AttnBackend& with, const std::string& text) {
      EXPECT_THAT(error_of([&] { DistMaskBuffer(*plan, capacity, communicator, with); }), HasSubstr(text));
    };
    DistMaskCapacity capacity = capacity_for(*plan);
    capacity.kv_rows = 0;
    refuses(capacity, backend, "kv_rows must be positive");
    capacity = capacity_for(*plan);
    capacity.passes = AttnPasses::kBackward;
    refuses(capacity, backend, "passes must be both or forward");
    capacity.passes = AttnPasses::kBoth;
    refuses(capacity, testing::DenseBackend(), "must work on the memory of GPUs");
    capacity.passes = AttnPasses::kForward;
    DistMaskBuffer forward(*plan, capacity, communicator, backend);
    EXPECT_EQ(forward.backward_workspace_bytes(), 0);
    RankStep step(*plan, options, forward);
    EXPECT_THAT(error_of([&] { step.call(forward); }), HasSubstr("set() must come first"));
    forward.set(plan, kStream);
    step.load(*plan, control.rank(), testing::make_inputs(plan->mask, options));
    EXPECT_THAT(error_of([&] { step.call(forward); }), HasSubstr("needs a buffer for both passes"));
    EXPECT_THAT(error_of([&] { forward.set(nullptr, kStream); }), HasSubstr("plan must be given"));
  });
}

}  // namespace
}  // namespace tangram
