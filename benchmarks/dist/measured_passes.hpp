// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Forward and backward passes on one rank, timed: on the whole mask alone, and as one of many ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "cuda/device_buffer.hpp"
#include "device_trace.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/device_dist_attention.hpp"

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

/// Of one call, in seconds: on the device (the slowest rank) and of the thread that calls (likewise).
struct CallTime {
  double device_s = 0;
  double host_s = 0;
};

/// How calls are repeated.
struct Repeats {
  double seconds = 0.15;  // about as long, but
  double warm_s = 0.1;    // before that: clocks rise while a GPU rests and fall when it works
  int least = 3;          // one where a call takes longer than `seconds`
  int most = 50;
};

/// Calls `call` back to back, after calls to warm up, and reports the mean. Collective over `control`: all ranks
/// start together and make equally many calls.
CallTime measure_calls(Communicator& control, cudaStream_t stream, const Repeats& repeats,
                       const std::function<void()>& call);

struct PassTimes {
  CallTime forward;
  CallTime backward;
};

/// The whole mask on one GPU.
struct SingleTimes {
  PassTimes idle;  // rank 0 while the others wait; the same on every rank
  PassTimes busy;  // the slowest of all ranks at once, which share what power and cooling the host has
};
SingleTimes measure_single(Communicator& control, const Mask& mask, const HeadConfig& heads, const Repeats& repeats);

/// The attention that each rank of a plan with one row group computes, without transfers and copies; zero for other
/// plans. Collective.
PassTimes measure_attention(Communicator& control, const Plan& plan, const Repeats& repeats);

/// By a plan. `as_graph`: passes captured once and replayed. `keeps`: forward leaves something to backward, and both
/// are timed as one forward pass.
PassTimes measure_distributed(DeviceCommunicator& communicator, DeviceDistAttention& attention, bool keeps,
                              bool as_graph, const Repeats& repeats);

/// What this rank's GPU does in two passes of each kind, the first to warm up, one after the other: forward, backward.
/// Collective.
std::vector<DeviceActivity> trace_distributed(DeviceCommunicator& communicator, DeviceDistAttention& attention,
                                              bool keeps, DeviceTrace& trace);

}  // namespace tangram::bench
