// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How long a dealing takes, by a simulation of the multiprocessors and penalties for what leaves the L2 cache.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "attn/sm90/backward/dealing.hpp"

namespace tangram::sm90::backward {

inline constexpr double kItemCost = 2;          ///< what an item costs beside its steps, in steps
inline constexpr double kCacheBytes = 1 << 27;  ///< what items dealt together may touch, of 50 MB of L2 cache

/// Multiprocessors of which each takes the next item as soon as it is free.
class Machine {
 public:
  explicit Machine(int num_sms) : free_at_(static_cast<size_t>(num_sms), 0.0) {}

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

/// Steps of one of `pieces` of an item. Pieces that are dealt together end together, and slow each other down when they
/// join.
double steps_of(const Extent& item, const AttnShape& shape, int pieces, bool together);

/// A mask on multiprocessors. `arrives`: see choose_dealing.
struct Setting {
  const Extents& extents;
  const AttnShape& shape;
  int num_sms;
  std::span<const double> arrives;
};

/// Steps until the last multiprocessor is done.
double makespan(const Setting& in, const Dealing& how);

/// Queries, dout and the sums of dq of a query head.
double head_bytes(const AttnShape& shape);

/// Queries that the longest item visits, in whole tiles.
double longest_rows(const Extents& extents);

/// Whether even equal items are long enough to fall out of step, and their queries out of the cache.
bool drifts_slowly(const Extents& extents, const AttnShape& shape);

/// What to multiply a makespan by. Where items that meet have unequal lengths (length_spread), the multiprocessors
/// drift apart over the query heads of an item, and with them their queries and dq out of the L2 cache. Fitted to
/// measurements of 16 dealings of 28 masks (docs/design/backward_dealing.md).
double cache_penalty(const Extents& extents, double spread, const AttnShape& shape, const Dealing& how);

}  // namespace tangram::sm90::backward
