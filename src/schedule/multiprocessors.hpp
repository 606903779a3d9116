// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Multiprocessors that take items one after the other, for estimates of how long a launch takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tangram::schedule {

/// Multiprocessors of which each takes the next item as soon as it is free.
class Multiprocessors {
 public:
  explicit Multiprocessors(int num_sms) : free_at_(static_cast<size_t>(num_sms), 0.0) {}

  /// Not before `from`; returns when it begins.
  double run(double steps, double from = 0) {
    const double begin = std::max(free_at_.front(), from), end = begin + steps;
    end_ = std::max(end_, end);
    // The heap's first one moves down to where it belongs now.
    const size_t count = free_at_.size();
    size_t at = 0;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
      if (child + 1 < count && free_at_[child + 1] < free_at_[child]) ++child;
      if (free_at_[child] >= end) break;
      free_at_[at] = free_at_[child];
      at = child;
    }
    free_at_[at] = end;
    return begin;
  }
  double end() const { return end_; }

 private:
  std::vector<double> free_at_;  // a heap, the first one free in front
  double end_ = 0;
};

}  // namespace tangram::schedule
