// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Times of what is put on the default stream of the current GPU, by CUDA events.
#pragma once

#include <functional>
#include <vector>

namespace tangram::cli {

/// One call that is timed in turns, in each as often as events need to be exact, the first time after a warm-up.
class TimedCall {
 public:
  explicit TimedCall(std::function<void()> call) : call_(std::move(call)) {}

  void ping_pong_wait();
  /// Median seconds of one call, launches included, over all turns; 0 without turns.
  double median_s() const;

 private:
  std::function<void()> call_;
  int count_ = 0;
  std::vector<double> times_;
};

/// Median seconds of each call over `num_turns` turns, which they take one after the other.
std::vector<double> time_in_turns(std::vector<std::function<void()>> calls, int64_t num_turns);

}  // namespace tangram::cli
