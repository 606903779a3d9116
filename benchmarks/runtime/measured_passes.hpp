// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the benchmark times: forward and backward passes of one rank, of the whole mask on one GPU, and of a rank's
// attention alone.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "cuda/device_buffer.hpp"
#include "device_trace.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/dist_attention.hpp"
#include "turns.hpp"

namespace tangram::bench {

/// Random operands of both passes over `q_rows` and `k_rows` rows, bfloat16, with room for the results.
class Operands {
 public:
  Operands(int64_t q_rows, int64_t k_rows, const HeadConfig& heads, uint64_t seed);

  TensorView q, k, v, out, dout, dq, dk, dv;
  float* lse = nullptr;

 private:
  TensorView add(int64_t rows, int heads, int dim, uint64_t seed);
  std::vector<cuda::DeviceBuffer> memory_;
};

/// A stream with an owner.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// Something with both passes, to be timed. Lives as long as what `forward` and `backward` return is called.
class MeasuredPasses {
 public:
  virtual ~MeasuredPasses() = default;
  virtual TimedCall forward() = 0;
  /// Without a call: that of forward() does both.
  virtual TimedCall backward() = 0;
};

struct PassTimes {
  CallTime forward;
  CallTime backward;
};
/// Forward passes in turns with each other, then backward passes. Collective.
std::vector<PassTimes> measure_passes(Communicator& control, const Repeats& repeats,
                                      const std::vector<MeasuredPasses*>& all);

/// The whole mask on one GPU.
std::unique_ptr<MeasuredPasses> whole_mask_passes(const Mask& mask, const HeadConfig& heads);

/// The attention that a rank computes, without transfers and copies; null for plans whose rows move between row groups.
std::unique_ptr<MeasuredPasses> alone_passes(const Plan& plan, int rank);

/// By a plan. `as_graph`: captured once and replayed, two passes in a graph as a training step has several, so that
/// they use both slots of the communicator in turn. `keeps`: forward leaves something to backward, and both are one
/// call. Collective: runs passes once before they are captured.
std::unique_ptr<MeasuredPasses> distributed_passes(DeviceCommunicator& communicator, DistAttention& attention,
                                                   bool keeps, bool as_graph);

/// What this rank's GPU does in two passes of each kind, the first to warm up, one after the other: forward, backward.
/// Collective.
std::vector<DeviceActivity> trace_distributed(DeviceCommunicator& communicator, DistAttention& attention, bool keeps,
                                              DeviceTrace& trace);

}  // namespace tangram::bench
