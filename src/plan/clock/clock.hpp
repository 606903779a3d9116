// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The clock: how long a pass takes on every rank, from the order of its program and the seconds of its parts. What
// `make_plan`, `simulate` and predicted time lines say comes from it; they differ in where the seconds come from.
//
// A rank does one thing after the other. A cast starts when both sides have reached it and the link is free, and runs
// beside other work. A rank that waits for it continues when it has arrived. Every operation waits only for earlier
// ones of the common order, so that one sweep over it, rank after rank, is exact.
#pragma once

#include <span>
#include <vector>

#include "plan/clock/skeleton.hpp"

namespace tangram {

/// One rank's part in a cast. If `seconds` is 0, nothing comes and no rank waits.
struct CastLoad {
  double seconds = 0;
  double before_s = 0;  ///< of this rank alone, before it posts: rows are put together
  double after_s = 0;   ///< once it has waited: results are taken apart, or added up
  int source = -1;      ///< the rank that it waits for; -1: whatever others do is hidden in `seconds`
  int link = 0;         ///< in [0, kNumLinks); each carries one cast at a time
};
inline constexpr int kNumLinks = 4;

struct ClockLoads {
  int num_ranks = 1;
  std::vector<double> attend_s;   ///< [attends][ranks]
  std::vector<int> load_of_cast;  ///< rows of `casts` by cast; -1: none
  std::vector<CastLoad> casts;    ///< [loads][ranks]
  bool hides = true;  ///< casts overlap the rest; else a waiting rank moves the rows itself, in its own time

  CastLoad& cast(size_t load, size_t rank) { return casts[load * static_cast<size_t>(num_ranks) + rank]; }
  double& attend(size_t index, size_t rank) { return attend_s[index * static_cast<size_t>(num_ranks) + rank]; }
};
/// Loads of all zeros.
ClockLoads empty_loads(const Skeleton& skeleton, int num_ranks, int num_cast_loads);

/// A pass of one rank.
struct RankTime {
  double total_s = 0;
  double busy_s = 0;  ///< attention and what is done to memory

  double exposed_s() const { return total_s > busy_s ? total_s - busy_s : 0; }
};
/// The rank with the largest total; of several the first.
RankTime slowest_of(std::span<const RankTime> times);
/// Predicted time of a plan, from the slowest rank of each pass.
PredictedTime predicted(const RankTime& forward, const RankTime& backward);

struct ClockEvent {
  enum class Kind { kAttend, kCast, kMemory };
  int rank = 0;
  Kind kind = Kind::kAttend;
  int step = 0;          ///< AttendOp::step, or GroupCast::step of the cast and of what is done to memory for it
  bool results = false;  ///< of casts
  double begin_s = 0;
  double end_s = 0;
};

struct ClockTrace {
  std::vector<bool> ranks;  ///< the traced ranks; empty: all
  std::vector<ClockEvent> events;

  bool traces(size_t rank) const { return ranks.empty() || ranks[rank]; }
};

/// O(operations × ranks). Appends to `trace` where it is given.
std::vector<RankTime> run_clock(const Skeleton& skeleton, const ClockLoads& loads, ClockTrace* trace = nullptr);

}  // namespace tangram
