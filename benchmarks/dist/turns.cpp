// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "turns.hpp"

#include <algorithm>
#include <chrono>
#include <deque>

#include "cuda/check.hpp"

namespace tangram::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNumRounds = 3;
constexpr int kMostCalls = 50;  // without a pause: the host must not find a full queue

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double reduced(Communicator& control, ReduceOp op, double value) {
  float shared = static_cast<float>(value);
  control.all_reduce({&shared, 1}, op, "times");
  return shared;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Seconds on the device between two points of a stream.
class Stopwatch {
 public:
  Stopwatch() {
    cuda::check(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  Stopwatch(const Stopwatch&) = delete;
  void start(cudaStream_t stream) { cuda::check(cudaEventRecord(begin_, stream), "cudaEventRecord"); }
  double stop(cudaStream_t stream) {
    cuda::check(cudaEventRecord(end_, stream), "cudaEventRecord");
    cuda::check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return ms * 1e-3;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

/// One call's turns so far.
class Turns {
 public:
  Turns(Communicator& control, const TimedCall& timed) : control_(control), timed_(timed) {}

  /// Seconds of one call in `num_calls` that are not counted; the slowest rank's on all ranks.
  double warm_up(int num_calls) {
    control_.barrier("warm up");
    double once_s = 0;
    for (int left = num_calls; left > 0; left -= kMostCalls) once_s = enqueue(std::min(left, kMostCalls));
    return reduced(control_, ReduceOp::kMax, once_s);
  }
  void take(int num_calls) {
    control_.barrier("turn");
    const double once_s = enqueue(num_calls);
    slowest_s_.push_back(reduced(control_, ReduceOp::kMax, once_s));
    mean_s_.push_back(reduced(control_, ReduceOp::kSum, once_s) / control_.size());
  }

  /// The host's time is a median: one that other programs interrupt for a millisecond says nothing about a call.
  CallTime result() const {
    const double passes = timed_.num_passes;
    return {median(slowest_s_) / passes, median(mean_s_) / passes,
            reduced(control_, ReduceOp::kMax, median(host_s_)) / passes};
  }

 private:
  /// Seconds of one call on the device.
  double enqueue(int num_calls) {
    watch_.start(timed_.stream);
    for (int i = 0; i < num_calls; ++i) {
      const Clock::time_point begin = Clock::now();
      timed_.call();
      host_s_.push_back(seconds_since(begin));
    }
    return watch_.stop(timed_.stream) / num_calls;
  }

  Communicator& control_;
  const TimedCall& timed_;
  Stopwatch watch_;
  std::vector<double> slowest_s_, mean_s_, host_s_;
};

}  // namespace

std::vector<CallTime> measure_in_turns(Communicator& control, const Repeats& repeats,
                                       const std::vector<TimedCall>& calls) {
  struct Share {
    int num_rounds, num_warm, num_calls;
  };
  std::deque<Turns> turns;
  std::vector<Share> shares;
  for (const TimedCall& timed : calls) {
    Turns& turn = turns.emplace_back(control, timed);
    turn.warm_up(1);  // the first use of what is loaded or allocated late
    const double once_s = turn.warm_up(1);
    const auto fit_in = [&](double seconds) { return static_cast<int>(seconds / once_s); };
    shares.push_back({std::clamp(fit_in(repeats.seconds), 1, kNumRounds), fit_in(repeats.warm_s),
                      std::clamp(fit_in(repeats.seconds / kNumRounds), 1, kMostCalls)});
  }
  for (int round = 0; round < kNumRounds; ++round) {
    for (size_t i = 0; i < turns.size(); ++i) {
      if (round >= shares[i].num_rounds) continue;
      turns[i].warm_up(shares[i].num_warm);
      turns[i].take(shares[i].num_calls);
    }
  }
  std::vector<CallTime> times;
  for (const Turns& turn : turns) times.push_back(turn.result());
  return times;
}

}  // namespace tangram::bench
