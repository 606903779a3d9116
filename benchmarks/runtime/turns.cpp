// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "turns.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>
#include <optional>
#include <random>

#include "core/median.hpp"
#include "core/seconds_since.hpp"
#include "cuda/check.hpp"

namespace tangram::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTurn_s = 0.015;
constexpr int kFewestRounds = 3;
constexpr double kLong_s = 0.1;  // calls that have a turn for themselves
constexpr int kMostCalls = 50;   // of a turn: the host must not find a full queue

double reduced(Communicator& control, ReduceOp op, double value) {
  float shared = static_cast<float>(value);
  control.all_reduce({&shared, 1}, op, "times");
  return shared;
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

  /// Seconds of one call; the slowest rank's on all ranks.
  double take(int num_calls, bool counts) {
    control_.barrier("turn");
    // One call ahead, where many are timed: that ranks do not start at the same moment is no call's time.
    if (num_calls > 2) timed_.call();
    watch_.start(timed_.stream);
    for (int i = 0; i < num_calls; ++i) {
      const Clock::time_point begin = Clock::now();
      timed_.call();
      // The first call of a turn meets cold caches.
      if (counts && (i > 0 || num_calls == 1)) host_s_.push_back(seconds_since(begin));
    }
    const double once_s = watch_.stop(timed_.stream) / num_calls;
    const double slowest_s = reduced(control_, ReduceOp::kMax, once_s);
    if (counts) {
      slowest_s_.push_back(slowest_s);
      mean_s_.push_back(reduced(control_, ReduceOp::kSum, once_s) / control_.size());
    }
    return slowest_s;
  }

  /// How much slower round `round` was for this call than its median round; none if it had no turn there.
  std::optional<double> slowness(size_t round) const {
    if (round >= slowest_s_.size()) return std::nullopt;
    return slowest_s_[round] / median(slowest_s_);
  }

  /// `slowness`: of every round, for all calls.
  /// The host's time is a median: one that other programs interrupt for a millisecond says nothing about a call.
  CallTime result(const std::vector<double>& slowness) const {
    const auto typical = [&](std::vector<double> seconds) {
      for (size_t round = 0; round < seconds.size(); ++round) seconds[round] /= slowness[round];
      return median(std::move(seconds)) / timed_.num_passes;
    };
    return {typical(slowest_s_), typical(mean_s_),
            reduced(control_, ReduceOp::kMax, median(host_s_)) / timed_.num_passes};
  }

 private:
  Communicator& control_;
  const TimedCall& timed_;
  Stopwatch watch_;
  std::vector<double> slowest_s_, mean_s_, host_s_;
};

/// Median of all calls that had a turn in a round, for each round: how the GPU's clock changed it.
std::vector<double> slowness_of_rounds(const std::deque<Turns>& turns, int num_rounds) {
  std::vector<double> slowness;
  for (int round = 0; round < num_rounds; ++round) {
    std::vector<double> of_calls;
    for (const Turns& turn : turns) {
      if (const auto value = turn.slowness(static_cast<size_t>(round))) of_calls.push_back(*value);
    }
    slowness.push_back(median(std::move(of_calls)));
  }
  return slowness;
}

}  // namespace

std::vector<CallTime> measure_in_turns(Communicator& control, const Repeats& repeats,
                                       const std::vector<TimedCall>& calls) {
  std::deque<Turns> turns;
  std::vector<int> num_calls, num_rounds;
  double round_s = 0;
  for (const TimedCall& timed : calls) {
    Turns& turn = turns.emplace_back(control, timed);
    turn.take(1, false);  // the first use of what is loaded or allocated late
    const double once_s = turn.take(1, false);
    num_calls.push_back(std::clamp(static_cast<int>(kTurn_s / once_s), once_s < kLong_s ? 2 : 1, kMostCalls));
    const double turn_s = once_s * num_calls.back();
    num_rounds.push_back(std::max(static_cast<int>(repeats.seconds / turn_s), kFewestRounds));
    round_s += turn_s;
  }
  std::vector<size_t> order(calls.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(1);  // the same on all ranks
  const auto take_turns = [&](int round, bool counts) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      if (round < num_rounds[i]) turns[i].take(num_calls[i], counts);
    }
  };
  for (double warm_s = round_s; warm_s < repeats.warm_s; warm_s += round_s) take_turns(0, false);
  const int most_rounds = num_rounds.empty() ? 0 : *std::max_element(num_rounds.begin(), num_rounds.end());
  for (int round = 0; round < most_rounds; ++round) take_turns(round, true);
  const std::vector<double> slowness = slowness_of_rounds(turns, most_rounds);
  std::vector<CallTime> times;
  for (const Turns& turn : turns) times.push_back(turn.result(slowness));
  return times;
}

}  // namespace tangram::bench
