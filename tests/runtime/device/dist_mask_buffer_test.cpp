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
using testing::HostKernel;
using testing::HostRanks;
using testing::KernelCall;
using testing::kStream;
using testing::kTolerance;
using testing::packs;
using testing::Plans;
using testing::RankStep;
using testing::Recording;
using testing::runtime_counts;
using testing::RuntimeCounts;
using testing::StepInputs;
using testing::StepOptions;
using testing::StepResults;

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

// Own ranges are longer than two borders, so that calls read what lies between where it is.
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
    const bool has_waited = call.name.find("exchange_rows") != std::string_view::npos;
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

/// Equal bit for bit to another way of running plans, which shares neither tables nor transfers.
TEST(DistMaskBuffer, GradientsThatMoveInSixteenBits) {
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
    kernel.parameters = bytes_of(parameter<sm90::backward::PrePostParams>(call, 0), call.blocks_x);
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

}  // namespace
}  // namespace tangram
