// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans that change under captured passes of ranks: what these put on streams, and, where the host does what kernels
// would, what comes of it.

#include "tangram/dist_mask_buffer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/forward/params.hpp"
#include "runtime/device/buffered_step.hpp"
#include "runtime/device/program_step.hpp"
#include "runtime/mask_families.hpp"
#include "support/sample.hpp"
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
using testing::KernelCall;
using testing::kStream;
using testing::packs;
using testing::Plans;
using testing::RankStep;
using testing::Recording;
using testing::runtime_counts;
using testing::RuntimeCounts;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

// Partial results are rounded to float32 once a rank, sums once per contribution.
constexpr double kTolerance = 2e-6;

struct Case {
  StepOptions options;
  int size = 2;
  Plans plans;
};

/// A step that is captured with the first plan, replayed with every plan, equals a call of the same buffer bit for bit,
/// and a single rank.
void expect_replays(const Case& c) {
  const BufferBackend backend;
  std::vector<StepInputs> inputs;
  std::vector<StepResults> expected;
  for (const auto& plan : c.plans) {
    inputs.push_back(testing::make_inputs(plan->mask, c.options, static_cast<uint32_t>(inputs.size()) + 1));
    expected.push_back(testing::single_step(plan->mask, c.options, inputs.back(), testing::DenseBackend()));
  }
  std::mutex mutex;  // over gtest
  HostRanks(c.size).run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskBuffer buffer(*c.plans.front(), capacity_of(c.plans), communicator, backend);
    RankStep step(*c.plans.front(), c.options, buffer);
    const int rank = control.rank();
    std::vector<HostKernel> graph;
    for (size_t i = 0; i < c.plans.size(); ++i) {
      const Plan& plan = *c.plans[i];
      buffer.set(c.plans[i], kStream);
      step.load(plan, rank, inputs[i]);
      if (i == 0) {
        const Recording capture(true);
        step.call(buffer);
        graph = capture.kernels();
      }
      Recording::replay(graph);
      const StepResults replayed = step.results(plan, control);
      step.load(plan, rank, inputs[i]);
      const Recording called(false);
      step.call(buffer);
      const StepResults eager = step.results(plan, control);
      communicator.check();
      const std::lock_guard lock(mutex);
      SCOPED_TRACE(::testing::Message() << "plan " << i << ", rank " << rank);
      testing::expect_same_bits(replayed, eager);
      testing::expect_close(replayed, expected[i], kTolerance);
      ASSERT_EQ(called.kernels().size(), graph.size());
      for (size_t k = 0; k < graph.size(); ++k) {
        EXPECT_EQ(called.kernels()[k].name, graph[k].name);
        EXPECT_EQ(called.kernels()[k].parameters, graph[k].parameters) << graph[k].name;
      }
    }
    EXPECT_EQ(buffer.num_plans(), std::ssize(c.plans));
  });
}

TEST(DistMaskBuffer, ReplaysOfOneCaptureEqualCalls) {
  for (const int size : {1, 2, 3, 4}) {
    SCOPED_TRACE(size);
    StepOptions options;
    options.heads = testing::heads_of(4, size % 2 == 0 ? 2 : 1, DType::kFloat32, 16);
    const int count = support::is_long_run() && size == 2 ? 1000 : 12;
    expect_replays({options, size, packs(count, size, 240, options.heads)});
  }
}

// Own stretches are longer than two borders, so that calls read what lies between where it is.
TEST(DistMaskBuffer, OwnKeysAreReadWhereTheyLie) {
  StepOptions options;
  options.heads = testing::heads_of(1, 1, DType::kFloat32);
  expect_replays({options, 2, packs(3, 2, 1280, options.heads)});
}

TEST(DistMaskBuffer, MasksOfAllKindsThroughOneCapture) {
  StepOptions options;
  options.heads = testing::heads_of(2, 1, DType::kFloat32);
  options.seqlen_sink = 2;
  Plans plans;
  for (const auto& family : testing::mask_families()) {
    if (family.mask.seqlen_q() != testing::kSeqlen || family.mask.seqlen_k() != testing::kSeqlen) continue;
    plans.push_back(testing::plan_of(family.mask, options.heads, 3, 2, 2));
  }
  ASSERT_GT(plans.size(), 5u);
  expect_replays({options, 3, plans});
}

// Nothing but credits keeps a rank from writing the rows of its next pass over those that a peer still reads.
TEST(DistMaskBuffer, ForwardPassesInARowWaitUntilPeersHaveReadTheirRows) {
  constexpr size_t kLayers = 12;
  StepOptions options;
  options.heads = testing::heads_of(2, 1, DType::kFloat32);
  const Plans plans = packs(1, 2, 240, options.heads);
  std::vector<StepInputs> inputs;
  for (uint32_t seed = 1; seed <= kLayers; ++seed)
    inputs.push_back(testing::make_inputs(plans[0]->mask, options, seed));
  const BufferBackend backend;
  const HostRanks ranks(2);
  testing::set_executor([](const KernelCall& call) {
    Recording::put(testing::host_kernel(call));
    int device = 0;
    cudaGetDevice(&device);  // the rank: the second one begins to read late
    const bool has_waited = call.name.find("wait_flags") != std::string_view::npos;
    if (device == 1 && has_waited) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  ranks.run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskBuffer buffer(*plans[0], capacity_of(plans), communicator, backend);
    buffer.set(plans[0], kStream);
    std::vector<RankStep> layers;
    for (const StepInputs& in : inputs) {
      layers.emplace_back(*plans[0], options, buffer).load(*plans[0], control.rank(), in);
    }
    const Recording called(false);
    for (RankStep& layer : layers) layer.forward(buffer, false);
    communicator.check();
    for (size_t i = 0; i < kLayers; ++i) {
      const StepResults results = layers[i].results(*plans[0], control);
      if (control.rank() != 0) continue;
      const StepResults expected = testing::single_step(plans[0]->mask, options, inputs[i], testing::DenseBackend());
      for (int64_t row = 0; row < expected.out.rows(); ++row) {
        const float *const out = results.out.data<float>() + row * 2 * options.heads.head_dim_v,
                           *const want = expected.out.data<float>() + row * 2 * options.heads.head_dim_v;
        for (int x = 0; x < 2 * options.heads.head_dim_v; ++x)
          ASSERT_NEAR(out[x], want[x], kTolerance) << "layer " << i;
      }
    }
  });
}

/// As another way of running plans does it, which shares neither tables nor transfers: bit for bit.
TEST(DistMaskBuffer, GradientsThatTravelInSixteenBits) {
  StepOptions options;
  options.heads = testing::heads_of(4, 2, DType::kBFloat16);
  options.result_dtype = DType::kBFloat16;
  options.use_kept = false;
  const Plans plans = packs(6, 4, 240, options.heads, DType::kBFloat16);
  std::vector<StepInputs> inputs;
  std::vector<StepResults> expected;
  ProgramTarget target{.forward_calls = KeyCalls::kAsTheyCome, .backward_calls = KeyCalls::kAsTheyCome};
  target.stores_at_owners = true;
  for (const auto& plan : plans) {
    inputs.push_back(testing::make_inputs(plan->mask, options));
    expected.push_back(
        testing::program_step(plan, options, inputs.back(), testing::StreamBackend(), 1, nullptr, target));
  }
  const BufferBackend backend;
  HostRanks(4).run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskBuffer buffer(*plans.front(), capacity_of(plans), communicator, backend);
    RankStep step(*plans.front(), options, buffer);
    for (size_t i = 0; i < plans.size(); ++i) {
      buffer.set(plans[i], kStream);
      step.load(*plans[i], control.rank(), inputs[i]);
      step.call(buffer);
      const StepResults results = step.results(*plans[i], control);
      if (control.rank() == 0) testing::expect_same_bits(results, expected[i]);
    }
  });
}

/// With the parameters of attention kernels.
HostKernel launch_of(const KernelCall& call) {
  using testing::host_kernels::bytes_of;
  using testing::host_kernels::parameter;
  HostKernel kernel = testing::host_kernel(call);
  const auto is = [&](std::string_view name) { return call.name.find(name) != std::string_view::npos; };
  if (is("forward_kernel")) {
    kernel.parameters = bytes_of(parameter<sm90::ForwardParams>(call, 0), call.blocks_x);
  } else if (is("backward_kernel")) {
    kernel.parameters = bytes_of(parameter<sm90::backward::Params>(call, 0), call.blocks_x);
  } else if (is("before_kernel") || is("after_kernel")) {
    kernel.parameters = bytes_of(parameter<sm90::backward::EdgeParams>(call, 0), call.blocks_x);
  } else if (is("fill_kernel")) {
    kernel.parameters = bytes_of(parameter<float*>(call, 0), parameter<int>(call, 1));
  }
  kernel.run = nullptr;
  return kernel;
}

// With the backend of GPUs: counted and compared, not run.
TEST(DistMaskBuffer, NothingThatAGraphRecordsDependsOnThePlan) {
  constexpr int kSize = 4;
  Plans plans;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    plans.push_back(counted::make_pack_plan(seed, kSize, 16384, 4 + static_cast<int>(seed % 29)));
  }
  const DistMaskCapacity capacity = capacity_of(plans);
  const HostRanks ranks(kSize);
  testing::set_executor([](const KernelCall& call) { Recording::put(launch_of(call)); });
  const Sm90Backend backend;
  ranks.run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskBuffer buffer(*plans.front(), capacity, communicator, backend);
    StepOptions options;
    options.heads = counted::kHeads;
    options.result_dtype = DType::kBFloat16;
    RankStep step(*plans.front(), options, buffer);
    const int64_t work_bytes = buffer.backward_workspace_bytes();
    std::vector<HostKernel> expected;
    for (const auto& plan : plans) {
      control.barrier("before");
      const RuntimeCounts before = runtime_counts();
      const int64_t meetings = control.meetings();
      control.barrier("counted");
      buffer.set(plan, kStream);
      EXPECT_EQ(control.meetings() - meetings, 1) << "the barrier above";
      control.barrier("set");
      const RuntimeCounts now = runtime_counts();
      control.barrier("after");
      EXPECT_EQ(now.copies - before.copies, 2 * kSize) << "lists, and tables";
      EXPECT_EQ(now.waits - before.waits, 0);
      EXPECT_EQ(now.allocations + now.host_allocations + now.frees,
                before.allocations + before.host_allocations + before.frees);
      EXPECT_EQ(now.launches - before.launches, 0);
      const Recording recording(false);
      step.call(buffer);
      if (expected.empty()) expected = recording.kernels();
      ASSERT_EQ(recording.kernels().size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(recording.kernels()[i].name, expected[i].name);
        EXPECT_FALSE(expected[i].parameters.empty()) << expected[i].name;
        EXPECT_EQ(recording.kernels()[i].parameters, expected[i].parameters) << expected[i].name;
      }
      EXPECT_EQ(buffer.backward_workspace_bytes(), work_bytes);
    }
  });
}

double thread_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// `TANGRAM_PRINT_COUNTS=RANKS,ROWS,DOCUMENTS` prints what setting a plan and calls take of rank 0's thread.
TEST(DistMaskBuffer, PrintTimes) {
  const char* const wanted = std::getenv("TANGRAM_PRINT_COUNTS");
  int size = 0, rows = 0, documents = 0;
  if (wanted == nullptr || std::sscanf(wanted, "%d,%d,%d", &size, &rows, &documents) != 3) GTEST_SKIP();
  Plans plans;
  for (unsigned seed = 1; seed < 12; ++seed) plans.push_back(counted::make_pack_plan(seed, size, rows, documents));
  const HostRanks ranks(size);
  testing::set_executor(nullptr);
  const Sm90Backend backend;
  ranks.run([&](CountingControl& control, DeviceCommunicator& communicator) {
    DistMaskBuffer buffer(*plans.front(), capacity_of(plans), communicator, backend);
    StepOptions options;
    options.heads = counted::kHeads;
    options.result_dtype = DType::kBFloat16;
    RankStep step(*plans.front(), options, buffer);
    for (const auto& plan : plans) {
      control.barrier("before");
      const double begin = thread_us();
      buffer.set(plan, kStream);
      const double middle = thread_us();
      step.call(buffer);
      const double end = thread_us();
      if (control.rank() == 0) std::printf("set %.0f us, calls %.0f us\n", middle - begin, end - middle);
    }
  });
}

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
  for (const char* name : {"kv_rows", "sent_rows", "stretches", "slices"}) {
    DistMaskCapacity capacity = capacity_of({plans[0], causal});
    int64_t& field = name == std::string("kv_rows")     ? capacity.kv_rows
                     : name == std::string("sent_rows") ? capacity.sent_rows
                     : name == std::string("stretches") ? capacity.stretches
                                                        : capacity.slices;
    const DistMaskCapacity first = capacity_for(*plans[0]);
    const int64_t least = name == std::string("kv_rows")     ? needed.kv_rows
                          : name == std::string("sent_rows") ? needed.sent_rows
                          : name == std::string("stretches") ? needed.stretches
                                                             : needed.slices;
    field = least - 1;
    HostRanks(2).run([&](CountingControl& control, DeviceCommunicator& communicator) {
      if (capacity_for(*plans[0]).kv_rows > capacity.kv_rows || first.sent_rows > capacity.sent_rows ||
          first.stretches > capacity.stretches || first.slices > capacity.slices) {
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

// They meet, so that nobody has begun what others wait for.
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
