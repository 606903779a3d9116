// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/clock/clock.hpp"

#include <algorithm>
#include <array>

#include "core/require.hpp"

namespace tangram {

namespace {

class Clock {
 public:
  Clock(const Skeleton& skeleton, const ClockLoads& loads, ClockTrace* trace)
      : skeleton_(skeleton),
        loads_(loads),
        trace_(trace),
        num_ranks_(static_cast<size_t>(loads.num_ranks)),
        times_(num_ranks_),
        links_(num_ranks_),
        ready_flags_(skeleton.casts.size()) {}

  std::vector<RankTime> run() {
    for (const Skeleton::Op& op : skeleton_.ops) {
      switch (op.kind) {
        case Skeleton::Kind::kPost: post(op.index); break;
        case Skeleton::Kind::kWait: wait(op.index); break;
        case Skeleton::Kind::kAttend: attend(op.index); break;
      }
    }
    return std::move(times_);
  }

 private:
  using Kind = ClockEvent::Kind;

  const CastLoad* loads_of(int cast) const {
    const int load = loads_.load_of_cast[static_cast<size_t>(cast)];
    return load < 0 ? nullptr : &loads_.casts[static_cast<size_t>(load) * num_ranks_];
  }

  void spend(size_t rank, double seconds, Kind kind, int index) {
    if (seconds == 0) return;
    RankTime& time = times_[rank];
    note(rank, kind, index, time.total_s, time.total_s + seconds);
    time.total_s += seconds;
    time.busy_s += seconds;
  }

  void note(size_t rank, Kind kind, int index, double begin_s, double end_s) {
    if (trace_ == nullptr || !trace_->traces(rank)) return;
    const bool of_cast = kind != Kind::kAttend;
    const Skeleton::CastOfStep cast = of_cast ? skeleton_.casts[static_cast<size_t>(index)] : Skeleton::CastOfStep{};
    trace_->events.push_back({static_cast<int>(rank), kind, of_cast ? cast.step : index, cast.results, begin_s, end_s});
  }

  void post(int cast) {
    const CastLoad* loads = loads_of(cast);
    if (loads == nullptr) return;
    for (size_t r = 0; r < num_ranks_; ++r) spend(r, loads[r].before_s, Kind::kMemory, cast);
    std::vector<double>& ready_flag = ready_flags_[static_cast<size_t>(cast)];
    if (!free_.empty()) {
      ready_flag = std::move(free_.back());
      free_.pop_back();
    }
    ready_flag.resize(num_ranks_);
    for (size_t r = 0; r < num_ranks_; ++r) {
      const CastLoad& load = loads[r];
      double ready = times_[r].total_s;
      if (load.source >= 0) ready = std::max(ready, times_[static_cast<size_t>(load.source)].total_s);
      if (load.seconds > 0 && loads_.hides) {
        double& link = links_[r][static_cast<size_t>(load.link)];
        const double begin = std::max(link, ready);
        link = ready = begin + load.seconds;
        note(r, Kind::kCast, cast, begin, link);
      }
      ready_flag[r] = ready;
    }
  }

  void wait(int cast) {
    const CastLoad* loads = loads_of(cast);
    if (loads == nullptr) return;
    std::vector<double>& ready_flag = ready_flags_[static_cast<size_t>(cast)];
    for (size_t r = 0; r < num_ranks_; ++r) {
      double& now = times_[r].total_s;
      if (loads[r].seconds > 0) {
        now = std::max(now, ready_flag[r]);
        if (!loads_.hides) {
          note(r, Kind::kCast, cast, now, now + loads[r].seconds);
          now += loads[r].seconds;
        }
      }
      spend(r, loads[r].after_s, Kind::kMemory, cast);
    }
    free_.push_back(std::move(ready_flag));
  }

  void attend(int index) {
    const double* seconds = &loads_.attend_s[static_cast<size_t>(index) * num_ranks_];
    for (size_t r = 0; r < num_ranks_; ++r) spend(r, seconds[r], Kind::kAttend, index);
  }

  const Skeleton& skeleton_;
  const ClockLoads& loads_;
  ClockTrace* const trace_;
  const size_t num_ranks_;
  std::vector<RankTime> times_;
  std::vector<std::array<double, kNumLinks>> links_;  // when each is free
  std::vector<std::vector<double>> ready_flags_;      // by cast, while it is under way
  std::vector<std::vector<double>> free_;
};

}  // namespace

ClockLoads empty_loads(const Skeleton& skeleton, int num_ranks, int num_cast_loads) {
  ClockLoads loads;
  loads.num_ranks = num_ranks;
  loads.attend_s.resize(static_cast<size_t>(skeleton.num_attends) * static_cast<size_t>(num_ranks));
  loads.load_of_cast.assign(skeleton.casts.size(), -1);
  loads.casts.resize(static_cast<size_t>(num_cast_loads) * static_cast<size_t>(num_ranks));
  return loads;
}

RankTime slowest_of(std::span<const RankTime> times) {
  RankTime slowest;
  for (const RankTime& time : times) {
    if (time.total_s > slowest.total_s) slowest = time;
  }
  return slowest;
}

PredictedTime predicted(const RankTime& forward, const RankTime& backward) {
  return {forward.total_s, backward.total_s, forward.exposed_s() + backward.exposed_s()};
}

std::vector<RankTime> run_clock(const Skeleton& skeleton, const ClockLoads& loads, ClockTrace* trace) {
  TANGRAM_ASSERT(loads.load_of_cast.size() == skeleton.casts.size());
  return Clock(skeleton, loads, trace).run();
}

}  // namespace tangram
