// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Multiprocessors that take work tiles one after the other, for estimates of how long a launch takes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tangram::schedule {

/// Multiprocessors of which each takes the next work tile as soon as it is free.
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

/// Multiprocessors whose times are whole numbers, for many equal work tiles at once. A ring counts how many are free at
/// each time, from the first free one to `farthest` after it.
class CountedMultiprocessors {
 public:
  CountedMultiprocessors(int num_sms, int64_t farthest)
      : mask_(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(farthest, 1)) + 64) - 1),
        free_(mask_ + 1, 0),
        any_((mask_ + 1) / 64, 0) {
    put(0, num_sms);
  }

  /// `count` work tiles of `steps`, more than 0, each not before `from`.
  void run(int64_t steps, int64_t count, int64_t from = 0) {
    while (count > 0) {
      int32_t& free = free_[now_ & mask_];
      if (free == 0) {
        next();
        continue;
      }
      const int64_t taken = std::min<int64_t>(free, count);
      free -= static_cast<int32_t>(taken);
      if (free == 0) any_[(now_ & mask_) / 64] &= ~(uint64_t{1} << (now_ % 64));
      const int64_t end = std::max(static_cast<int64_t>(now_), from) + steps;
      end_ = std::max(end_, end);
      put(static_cast<uint64_t>(end), taken);
      count -= taken;
    }
  }
  int64_t end() const { return end_; }

 private:
  void put(uint64_t at, int64_t count) {
    free_[at & mask_] += static_cast<int32_t>(count);
    any_[(at & mask_) / 64] |= uint64_t{1} << (at % 64);
  }
  /// Advances to the next time at which a multiprocessor is free; there must be one.
  void next() {
    uint64_t word = any_[(now_ & mask_) / 64] >> (now_ % 64);
    if (word == 0) {
      do {
        now_ = (now_ / 64 + 1) * 64;
        word = any_[(now_ & mask_) / 64];
      } while (word == 0);
    }
    now_ += static_cast<uint64_t>(std::countr_zero(word));
  }

  uint64_t mask_;
  std::vector<int32_t> free_;  // by time, modulo the ring
  std::vector<uint64_t> any_;  // a bit a time: whether one is free then
  uint64_t now_ = 0;
  int64_t end_ = 0;
};

}  // namespace tangram::schedule
