// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What of a dealing the L2 cache holds, by a simulation of the multiprocessors and of the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/makespan.hpp"

namespace tangram::schedule {

/// Whether queries, dout and sums of dq are more than the cache holds by far, and a simulation takes milliseconds. Not
/// for windows, which stay together by themselves: what is simulated of them was not seen in measurements.
bool is_cache_simulated(const Setting& in);

/// The multiprocessors and the L2 cache while the items of a mask are dealt. `in` is referred to.
class CacheSimulation {
 public:
  /// `descending`: as in Walk.
  CacheSimulation(const Setting& in, bool descending);

  /// The share of all steps whose queries, dout and sums of dq are not in the cache any more, or not yet: of a cache
  /// that drops what was used longest ago. `heads_inside`: as in Walk.
  double missed_share(const Dealing& how, bool heads_inside);

 private:
  /// Of some query tiles of one head, by one item.
  struct Use {
    uint32_t at = 0;  // in steps
    uint32_t block = 0;
    uint32_t tiles = 0;
  };

  void add_uses(const Extent& extent, int first_head, int heads, bool heads_inside, int64_t at);
  /// From uses_ to sorted_.
  void sort_by_time();

  const Setting& in_;
  bool descending_;
  int chunk_bits_;
  int64_t num_chunks_ = 0;
  std::vector<Use> uses_, sorted_;
  std::vector<size_t> begin_;
};

/// What to multiply a makespan by where so much is missed. A least-squares fit to 11 dealings of each of 38 masks of
/// 4K to 32K rows (docs/design/backward_dealing.md), which it meets with a standard deviation of 1.8 %.
double missed_penalty(double missed);

}  // namespace tangram::schedule
