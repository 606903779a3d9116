// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What tests of the Hopper backend share: whether it can run, a mask made ready, a problem's tensors on the device, and
// what its results are compared with.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm80/sm80_backend.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/workspace.hpp"

namespace tangram::test {

/// Which backend tests are of that several must pass: tests/attn/CMakeLists.txt compiles them once for each.
#ifdef TANGRAM_TEST_SM80
using TestedBackend = Sm80Backend;
inline Sm80Check check_tested() { return check_sm80(); }
#else
using TestedBackend = Sm90Backend;
inline HopperCheck check_tested() { return check_hopper(); }
#endif

/// On a stream of its own. Skipped without a GPU for the backend.
class Sm90OnStream : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!check_tested().found) GTEST_SKIP() << check_tested().text;
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  void TearDown() override {
    if (stream_ != nullptr) cuda::check(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }
  /// A graph of what `calls` enqueues on the stream; the caller destroys it. In global mode the capture fails when
  /// anything allocates, copies from pageable memory or waits, so that a graph that comes out proves that nothing did.
  cudaGraphExec_t capture(const auto& calls, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cuda::check(cudaStreamBeginCapture(stream_, mode), "cudaStreamBeginCapture");
    calls();
    cuda::check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return executable;
  }

  cudaStream_t stream_ = nullptr;
};

/// Whether `one` differs from `other` by at most so much of its norm. NaN differs.
inline bool is_within(const HostTensor& one, const HostTensor& other, double tolerance) {
  double error = 0, norm = 0;
  for (int64_t row = 0; row < one.view().rows; ++row) {
    for (int head = 0; head < one.view().heads; ++head) {
      for (int d = 0; d < one.view().dim; ++d) {
        const double x = one.at(row, head, d), y = other.at(row, head, d);
        error += (x - y) * (x - y), norm += y * y;
      }
    }
  }
  return !std::isnan(error) && std::sqrt(error) <= tolerance * std::sqrt(norm);
}

/// Rounds of a test of random problems: at most `most`, and as many as TANGRAM_TEST_ROUNDS says (fewer under
/// compute-sanitizer).
inline int num_rounds(int most) {
  const char* text = std::getenv("TANGRAM_TEST_ROUNDS");
  return text == nullptr ? most : std::min(most, std::atoi(text));
}

/// With what both passes need.
inline std::unique_ptr<MaskSlot> prepare_sm90(const TestedBackend& backend, std::span<const AttnSlice> slices,
                                              const AttnShape& shape) {
  return make_mask_slot(backend, slices, shape);
}

/// cudaMemset returns before it is done, and streams that do not block do not wait for it.
inline void wait_for_device() { cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

/// Fills with NaN the memory in which calls of both passes with this mask compute, as an earlier call with another mask
/// may have left it: what is read unwritten reaches the outputs. This, and not initcheck, shows that nothing is: the
/// tool does not see the bulk copies that write the sums of dq (docs/design/gpu_backends.md).
inline void poison_workspace(const MaskSlot& slot) {
  const Sm90Backend backend;
  const int64_t bytes =
      std::max(backend.workspace_bytes(slot, AttnPass::kForward), backend.workspace_bytes(slot, AttnPass::kBackward));
  const cuda::Workspace::Lease lease = cuda::workspace_of_current_device().acquire(static_cast<size_t>(bytes), nullptr);
  if (bytes > 0) cuda::check(cudaMemset(lease.data(), 0xff, static_cast<size_t>(bytes)), "cudaMemset");
  wait_for_device();
}

/// lse and max_logits as in float64. Both come of float32 sums of approximate exponentials, 2^-22 relative each, on
/// logits around 10.
inline void expect_logits(const RandomAttention& r, const reference::DenseResult& wanted) {
  for (size_t i = 0; i < r.lse.size(); ++i) {
    if (std::isinf(wanted.lse[i])) {
      ASSERT_EQ(r.lse[i], wanted.lse[i]) << "lse " << i;
    } else {
      ASSERT_NEAR(r.lse[i], wanted.lse[i], 1e-3) << "lse " << i;
    }
  }
  for (size_t h = 0; h < r.max_logits.size(); ++h) {
    if (std::isinf(wanted.max_logits[h])) {
      EXPECT_EQ(r.max_logits[h], wanted.max_logits[h]);
    } else {
      EXPECT_NEAR(r.max_logits[h], wanted.max_logits[h], 1e-4 * (1 + std::abs(wanted.max_logits[h])));
    }
  }
}

inline cuda::DeviceBuffer upload(const HostTensor& host) {
  return cuda::DeviceBuffer::copy_of(host.view().data, static_cast<size_t>(host.bytes()));
}
inline cuda::DeviceBuffer upload(const std::vector<float>& values) {
  return cuda::DeviceBuffer::copy_of(values.data(), values.size() * sizeof(float));
}

/// The tensors of a problem on the device, gaps between heads and rows included, each in an allocation of exactly its
/// size. Outputs start as what the host tensors hold (NaN).
class OnDevice {
 public:
  AttnForwardArgs forward;
  AttnBackwardArgs backward;

  explicit OnDevice(RandomAttention& r) : forward(r.forward_args()), backward(r.backward_args()), problem_(&r) {
    forward.q.data = backward.q.data = hold(r.q);
    forward.k.data = backward.k.data = hold(r.k);
    forward.v.data = backward.v.data = hold(r.v);
    backward.dout.data = hold(r.dout);
    forward.out.data = hold(r.out);
    backward.out.data = forward.out.data;
    backward.dq.data = hold(r.dq);
    backward.dk.data = hold(r.dk);
    backward.dv.data = hold(r.dv);
    forward.lse = hold_floats(r.lse);
    backward.lse = forward.lse;
    forward.max_logits = hold_floats(r.max_logits);
    forward.sink.data = backward.sink.data = hold_floats(r.sink);
    if (backward.dsink != nullptr) backward.dsink = hold_floats(r.dsink);
  }

  /// All outputs back into the problem.
  void fetch() {
    RandomAttention& r = *problem_;
    download(r.out.view().data, forward.out.data, r.out.bytes());
    download(r.dq.view().data, backward.dq.data, r.dq.bytes());
    download(r.dk.view().data, backward.dk.data, r.dk.bytes());
    download(r.dv.view().data, backward.dv.data, r.dv.bytes());
    download(r.lse.data(), forward.lse, bytes_of(r.lse));
    if (forward.max_logits != nullptr) download(r.max_logits.data(), forward.max_logits, bytes_of(r.max_logits));
    if (backward.dsink != nullptr) download(r.dsink.data(), backward.dsink, bytes_of(r.dsink));
  }
  /// Fills all outputs with NaN.
  void poison_outputs() {
    for (const auto& [data, bytes] : outputs()) cuda::check(cudaMemset(data, 0xff, bytes), "cudaMemset");
    wait_for_device();
  }
  /// The bytes of all outputs, one after the other.
  std::vector<char> output_bytes() const {
    std::vector<char> all;
    for (const auto& [data, bytes] : outputs()) {
      all.resize(all.size() + bytes);
      download(all.data() + all.size() - bytes, data, static_cast<int64_t>(bytes));
    }
    return all;
  }

 private:
  static int64_t bytes_of(const std::vector<float>& values) {
    return static_cast<int64_t>(values.size() * sizeof(float));
  }
  static void download(void* to, const void* from, int64_t bytes) {
    if (bytes == 0) return;
    cuda::check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  template <class Values>
  void* hold(const Values& values) {
    buffers_.push_back(upload(values));
    return buffers_.back().as<void>();
  }
  float* hold_floats(const std::vector<float>& values) { return static_cast<float*>(hold(values)); }
  std::vector<std::pair<void*, size_t>> outputs() const {
    const RandomAttention& r = *problem_;
    std::vector<std::pair<void*, size_t>> list{{forward.out.data, static_cast<size_t>(r.out.bytes())},
                                               {backward.dq.data, static_cast<size_t>(r.dq.bytes())},
                                               {backward.dk.data, static_cast<size_t>(r.dk.bytes())},
                                               {backward.dv.data, static_cast<size_t>(r.dv.bytes())},
                                               {forward.lse, static_cast<size_t>(bytes_of(r.lse))}};
    if (forward.max_logits != nullptr) list.emplace_back(forward.max_logits, bytes_of(r.max_logits));
    if (backward.dsink != nullptr) list.emplace_back(backward.dsink, static_cast<size_t>(bytes_of(r.dsink)));
    return list;
  }

  RandomAttention* problem_;
  std::vector<cuda::DeviceBuffer> buffers_;
};

}  // namespace tangram::test
