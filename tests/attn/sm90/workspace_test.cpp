// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Memory in which calls compute belongs to no call: whatever an earlier call left there, on whichever stream and
// thread, and whatever becomes of the mask meanwhile, results are the same. Needs a Hopper GPU; skipped elsewhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram {
namespace {

using test::HeadDims;
using test::make_random;
using test::OnDevice;
using test::RandomAttention;
using test::RandomConfig;

/// A problem on the device, deterministic, with its mask prepared anew for each step.
class Problem {
 public:
  /// Documents of `document` rows; the fewer, the more pieces their key tiles are scheduled in.
  Problem(const Sm90Backend& backend, int64_t rows, int64_t document, unsigned seed, HeadDims dims = {64, 64})
      : backend_(&backend),
        slices_(documents(rows, document)),
        r_(make_random(config(rows, dims), slices_, seed)),
        device_(r_) {
    device_.forward.options.deterministic = device_.backward.options.deterministic = true;
    mask = prepare();
    forward();
    backward();
    expected_ = fetch();
  }

  /// With what forward() needs made before, and what backward() needs made by the call.
  std::unique_ptr<MaskSlot> prepare_for_forward() const {
    return make_mask_slot(*backend_, slices_, r_.config.shape, {.passes = AttnPasses::kForward});
  }
  void prepare_backward() {
    const std::span<const AttnSlice> slices = slices_;
    backend_->install(
        *mask,
        backend_->build(
            {.masks = {&slices, 1}, .shape = r_.config.shape, .parts = kBackwardParts, .gpu = backend_->caps().gpu}));
  }
  std::unique_ptr<MaskSlot> prepare() const { return test::prepare_sm90(*backend_, slices_, r_.config.shape); }
  void forward(cudaStream_t stream = nullptr) { backend_->forward(*mask, device_.forward, stream); }
  void backward(cudaStream_t stream = nullptr) { backend_->backward(*mask, device_.backward, stream); }

  void poison_results() { device_.poison_outputs(); }
  void expect_same(const char* what) const { EXPECT_TRUE(fetch() == expected_) << what; }

  std::unique_ptr<MaskSlot> mask;

 private:
  static RandomConfig config(int64_t rows, HeadDims dims) {
    RandomConfig config;
    config.shape = test::shape_of(rows, rows, 8, 2, dims);
    config.poison = false;
    return config;
  }
  static std::vector<AttnSlice> documents(int64_t rows, int64_t length) {
    std::vector<AttnSlice> slices;
    for (int64_t begin = 0; begin < rows; begin += length) {
      const Range document{begin, std::min(rows, begin + length)};
      slices.push_back(AttnSlice::causal(document, document));
    }
    return slices;
  }
  std::vector<char> fetch() const {
    test::wait_for_device();
    return device_.output_bytes();
  }

  const Sm90Backend* backend_;
  std::vector<AttnSlice> slices_;
  RandomAttention r_;
  OnDevice device_;
  std::vector<char> expected_;
};

class Stream {
 public:
  Stream() { cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Sm90Workspace : public testing::Test {
 protected:
  void SetUp() override {
    if (!check_hopper().found) GTEST_SKIP() << check_hopper().text;
  }
  Sm90Backend backend_;
};

TEST_F(Sm90Workspace, MasksInTurnsFindWhatTheOtherLeft) {
  Problem few(backend_, 2048, 2048, 1), many(backend_, 2048, 96, 2), small(backend_, 300, 300, 3);
  // Kernels of other classes, with sums and accumulator tiles of other sizes.
  Problem split(backend_, 1024, 1024, 4, {256, 256}), packed(backend_, 1024, 500, 5, {192, 128}),
      narrow(backend_, 1024, 300, 6, {72, 40}), pairs(backend_, 700, 700, 7, {32, 32});
  for (int round = 0; round < 4; ++round) {
    for (Problem* problem : {&few, &split, &many, &narrow, &packed, &small, &pairs}) {
      problem->poison_results();
      if (round % 2 == 1) test::poison_workspace(*problem->mask);
      problem->forward();
      problem->backward();
      problem->expect_same("in turns");
    }
  }
}

TEST_F(Sm90Workspace, ForwardOfOneMaskBetweenForwardAndBackwardOfAnother) {
  Problem first(backend_, 1024, 500, 1), second(backend_, 2048, 2048, 2);
  first.poison_results(), second.poison_results();
  first.forward();
  second.forward();
  first.backward();
  second.backward();
  first.expect_same("first"), second.expect_same("second");
}

TEST_F(Sm90Workspace, TwoStreamsTakeTurns) {
  Problem first(backend_, 2048, 700, 1), second(backend_, 2048, 2048, 2);
  first.poison_results(), second.poison_results();
  const Stream one, other;
  for (int round = 0; round < 20; ++round) {
    first.forward(one), first.backward(one);
    second.forward(other), second.backward(other);
  }
  first.expect_same("first stream"), second.expect_same("second stream");
}

TEST_F(Sm90Workspace, TwoThreadsTakeTurns) {
  Problem first(backend_, 2048, 700, 1), second(backend_, 1024, 1024, 2);
  first.poison_results(), second.poison_results();
  const auto work = [](Problem& problem) {
    const Stream stream;
    for (int round = 0; round < 50; ++round) problem.forward(stream), problem.backward(stream);
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  };
  std::thread one([&] { work(first); }), other([&] { work(second); });
  one.join(), other.join();
  first.expect_same("first thread"), second.expect_same("second thread");
}

TEST_F(Sm90Workspace, AMaskIsDroppedWhileItsKernelsRun) {
  for (const HeadDims dims : test::kHeadDims) {
    SCOPED_TRACE(dims);
    Problem problem(backend_, 4096, 1500, 1, dims);
    const Stream stream;
    for (int round = 0; round < 10; ++round) {
      problem.poison_results();
      problem.forward(stream), problem.backward(stream);
      problem.mask = nullptr;
      problem.mask = problem.prepare();
      problem.expect_same("dropped");
    }
  }
}

TEST_F(Sm90Workspace, AGraphKeepsTheWorkspaceItWasCapturedWith) {
  Problem problem(backend_, 512, 512, 1);
  const Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  problem.forward(stream), problem.backward(stream);
  cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cuda::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  const size_t before = cuda::workspace_of_current_device().bytes();
  {
    const auto larger = cuda::workspace_of_current_device().acquire(before + (64 << 20), stream);
    cuda::check(cudaMemsetAsync(larger.data(), 0xff, before + (64 << 20), stream), "cudaMemsetAsync");
  }
  const cuda::DeviceBuffer taken(before);  // would lie where the graph computes, had it been freed
  cuda::check(cudaMemset(taken.as<void>(), 0xff, before), "cudaMemset");
  test::wait_for_device();
  for (int round = 0; round < 3; ++round) {
    problem.poison_results();
    cuda::check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    problem.expect_same("replayed");
  }
  std::vector<unsigned char> untouched(before);
  cuda::check(cudaMemcpy(untouched.data(), taken.as<void>(), before, cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_TRUE(std::all_of(untouched.begin(), untouched.end(), [](unsigned char c) { return c == 0xff; }));
  cuda::check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  test::wait_for_device();
  cuda::release_objects_of_ended_graphs();
}

TEST_F(Sm90Workspace, TheFirstBackwardCallOfAMaskMayBeCaptured) {
  for (const HeadDims dims : test::kHeadDims) {
    SCOPED_TRACE(dims);
    Problem problem(backend_, 512, 200, 1, dims);
    const Stream stream;
    problem.mask = problem.prepare_for_forward();
    problem.poison_results();
    problem.forward();
    test::wait_for_device();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    problem.prepare_backward();
    problem.backward(stream);
    cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    cuda::check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    problem.expect_same("captured at once");
    cuda::check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
}

}  // namespace
}  // namespace tangram
