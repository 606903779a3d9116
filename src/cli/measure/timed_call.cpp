// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/timed_call.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/median.hpp"
#include "cuda/check.hpp"

namespace tangram::cli {

namespace {

class Event {
 public:
  Event() { cuda::check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() { cuda::check(cudaEventRecord(event_, nullptr), "cudaEventRecord"); }
  double seconds_since(const Event& begin) {
    cuda::check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin.event_, event_), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Seconds of one of `count` calls.
double timed(int count, const std::function<void()>& call) {
  Event begin, end;
  begin.record();
  for (int i = 0; i < count; ++i) call();
  end.record();
  return end.seconds_since(begin) / count;
}

}  // namespace

void TimedCall::ping_pong_wait() {
  if (count_ == 0) {
    constexpr double kTurnSeconds = 0.01;  // long enough that events cost nothing
    timed(2, call_);
    count_ = static_cast<int>(std::clamp(kTurnSeconds / timed(2, call_), 1.0, 1000.0));
  }
  times_.push_back(timed(count_, call_));
}

double TimedCall::median_s() const { return times_.empty() ? 0 : median(times_); }

std::vector<double> time_in_turns(std::vector<std::function<void()>> calls, int64_t num_turns) {
  std::vector<TimedCall> timed_calls;
  for (std::function<void()>& call : calls) timed_calls.emplace_back(std::move(call));
  for (int64_t turn = 0; turn < num_turns; ++turn) {
    for (TimedCall& call : timed_calls) call.ping_pong_wait();
  }
  std::vector<double> medians;
  for (const TimedCall& call : timed_calls) medians.push_back(call.median_s());
  return medians;
}

}  // namespace tangram::cli
