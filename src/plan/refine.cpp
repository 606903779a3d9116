// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/refine.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/require.hpp"

namespace tangram {

namespace {

// What an overload by the whole mean area weighs, in multiples of all rows. It grows while the search goes on, so that
// balance is bought where it is cheap and holds in the end.
constexpr double kExcessWeights[] = {1, 4, 30, 1000};
constexpr int64_t kNumPhases = std::size(kExcessWeights);
constexpr int kNumSamples = 4;  // runs that are compared by area before one goes back
// Work in nanoseconds, measured.
constexpr int64_t kWorkOfProposal = 55;
constexpr int64_t kWorkOfSample = 18;
constexpr int64_t kWorkOfCount = 35;
constexpr int64_t kWorkOfRun = 6;
constexpr size_t kMaxParts = 16;     // runs of one stretch
constexpr size_t kMaxStretches = 8;  // that a rank may give back for one that it receives

}  // namespace

Refiner::Refiner(std::span<const AttnSlice> slices, int64_t chunk_size, std::vector<int64_t> chunk_areas, int cp_size)
    : cp_size_(cp_size),
      num_rows_(static_cast<int64_t>(chunk_areas.size()) * chunk_size),
      prefix_(chunk_areas.size() + 1),
      components_(slices, chunk_size, static_cast<int>(chunk_areas.size())),
      rank_(chunk_areas.size()),
      begin_(chunk_areas.size()),
      end_(chunk_areas.size()),
      slot_(chunk_areas.size()),
      runs_of_(static_cast<size_t>(cp_size)) {
  std::partial_sum(chunk_areas.begin(), chunk_areas.end(), prefix_.begin() + 1);
  mean_area_ = std::max<int64_t>(1, prefix_.back() / cp_size);
}

// Rows that are worth an area above the limit.
int64_t Refiner::excess(int64_t area) const {
  if (area <= area_limit_) return 0;
  const double share = static_cast<double>(area - area_limit_) / static_cast<double>(mean_area_);
  return static_cast<int64_t>(share * excess_weight_ * static_cast<double>(num_rows_)) + 1;
}

int64_t Refiner::total() const {
  int64_t sum = remote_rows_;
  for (const int64_t area : area_of_) sum += excess(area);
  return sum;
}

void Refiner::start(const std::vector<int>& ranks, double tolerance) {
  area_limit_ = mean_area_ + static_cast<int64_t>(static_cast<double>(mean_area_) * tolerance);
  area_of_.assign(static_cast<size_t>(cp_size_), 0);
  for (std::vector<int>& runs : runs_of_) runs.clear();
  const int num_chunks = static_cast<int>(ranks.size());
  for (int begin = 0; begin < num_chunks;) {
    const int rank = ranks[static_cast<size_t>(begin)];
    const int limit = components_[components_.of_chunk(begin)].last;
    int end = begin + 1;
    while (end < limit && ranks[static_cast<size_t>(end)] == rank) ++end;
    add_run({begin, end}, rank);
    area_of_[static_cast<size_t>(rank)] += area({begin, end});
    begin = end;
  }
}

void Refiner::store(std::vector<int>& ranks) const {
  for (size_t begin = 0; begin < ranks.size(); begin = static_cast<size_t>(end_[begin])) {
    std::fill(ranks.begin() + static_cast<int64_t>(begin), ranks.begin() + end_[begin], rank_[begin]);
  }
}

void Refiner::add_run(const ChunkRun& run, int rank) {
  std::vector<int>& runs = runs_of_[static_cast<size_t>(rank)];
  at(rank_, run.begin) = rank;
  at(end_, run.begin) = run.end;
  at(begin_, run.end - 1) = run.begin;
  at(slot_, run.begin) = static_cast<int>(runs.size());
  runs.push_back(run.begin);
}

void Refiner::drop_run(int begin) {
  std::vector<int>& runs = runs_of_[static_cast<size_t>(at(rank_, begin))];
  runs[static_cast<size_t>(at(slot_, begin))] = runs.back();
  at(slot_, runs.back()) = at(slot_, begin);
  runs.pop_back();
}

// Counts the remote rows of all components, and keeps them by component and rank if `keep`.
void Refiner::count_remote_rows(bool keep) {
  const size_t num_ranks = static_cast<size_t>(cp_size_);
  if (keep) {
    cost_.assign(components_.size() * num_ranks, 0);
    split_.clear();
    split_slot_.assign(components_.size(), -1);
  }
  std::vector<size_t> counted(num_ranks, components_.size());  // the last component of each rank
  remote_rows_ = 0;
  for (size_t i = 0; i < components_.size(); ++i) {
    const MaskComponent& component = components_[i];
    if (!component.sees_keys) continue;
    // Most components lie on one rank, which has nothing to receive.
    int begin = component.own > component.first ? at(begin_, component.own - 1) : component.first;
    if (at(end_, begin) >= component.last) continue;
    if (keep) update_split(i);
    for (; begin < component.last; begin = at(end_, begin)) {
      const int rank = at(rank_, begin);
      if (counted[static_cast<size_t>(rank)] == i) continue;
      counted[static_cast<size_t>(rank)] = i;
      collect_owned(i, rank, false);
      const int64_t rows = components_.remote_rows(i, owned_);
      if (keep) cost_[i * num_ranks + static_cast<size_t>(rank)] = rows;
      remote_rows_ += rows;
    }
  }
}

uint64_t Refiner::random() {
  // splitmix64 (Steele, Lea, Flood, 2014)
  uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Moves a part of one run.
void Refiner::move(const ChunkRun& part, int to) {
  const MaskComponent& component = components_[components_.of_chunk(part.begin)];
  int begin = component.own;
  while (at(end_, begin) <= part.begin) begin = at(end_, begin);
  const ChunkRun whole{begin, at(end_, begin)};
  const int from = at(rank_, begin);
  area_of_[static_cast<size_t>(from)] -= area(part);
  area_of_[static_cast<size_t>(to)] += area(part);
  drop_run(begin);
  if (whole.begin < part.begin) add_run({whole.begin, part.begin}, from);
  if (part.end < whole.end) add_run({part.end, whole.end}, from);
  ChunkRun joined = part;
  if (whole.begin == part.begin && begin > component.own && at(rank_, at(begin_, begin - 1)) == to) {
    joined.begin = at(begin_, begin - 1);
    drop_run(joined.begin);
  }
  if (whole.end == part.end && part.end < component.last && at(rank_, part.end) == to) {
    joined.end = at(end_, part.end);
    drop_run(part.end);
  }
  add_run(joined, to);
  work_ += kWorkOfCount;
}

// Keeps the list of components that lie on more than one rank.
void Refiner::update_split(size_t index) {
  const MaskComponent& component = components_[index];
  if (!component.sees_keys || component.own >= component.last) return;
  const int before = component.own > component.first ? at(rank_, at(begin_, component.own - 1)) : -1;
  const bool split = at(end_, component.own) < component.last || (before >= 0 && before != at(rank_, component.own));
  int& slot = split_slot_[index];
  if (split && slot < 0) {
    slot = static_cast<int>(split_.size());
    split_.push_back(index);
  } else if (!split && slot >= 0) {
    split_[static_cast<size_t>(slot)] = split_.back();
    split_slot_[split_.back()] = slot;
    split_.pop_back();
    slot = -1;
  }
}

// Adds to `parts` neighbouring runs of one rank, from the one that begins at `first` on or backwards, up to `count`
// chunks. Returns how many chunks are still missing.
int Refiner::extend(int first, int count, bool forwards, std::vector<ChunkRun>& parts) {
  const int rank = at(rank_, first);
  for (size_t n = 0; n < kMaxParts && count > 0; ++n) {
    ChunkRun part{first, at(end_, first)};
    const ChunkRun whole = part;
    if (part.size() > count && forwards) part.end = part.begin + count;
    if (part.size() > count) part.begin = part.end - count;
    parts.push_back(part);
    count -= part.size();
    work_ += kWorkOfRun;
    if (forwards) {
      if (whole.end == static_cast<int>(rank_.size())) break;
      first = whole.end;
    } else {
      if (whole.begin == 0) break;
      first = at(begin_, whole.begin - 1);
    }
    if (at(rank_, first) != rank) break;
  }
  return count;
}

// Neighbouring runs of the rank, `count` chunks at most, into stretch_. False when they fell on what already goes back.
bool Refiner::random_stretch(int rank, int count) {
  work_ += kWorkOfSample;
  const std::vector<int>& runs = runs_of_[static_cast<size_t>(rank)];
  stretch_.clear();
  extend(runs[static_cast<size_t>(random_below(runs.size()))], count, random() % 2 == 0, stretch_);
  for (const ChunkRun& part : stretch_) {
    for (const ChunkRun& other : taken_) {
      if (part.begin < other.end && other.begin < part.end) return false;
    }
  }
  return true;
}

// Chooses runs of `count` chunks in all that go back to rank a_, with an area near `goal`.
bool Refiner::take_back(int count, int64_t goal) {
  std::vector<ChunkRun>& best = best_stretch_;
  for (size_t tries = 0; tries < kMaxStretches && count > 0; ++tries) {
    best.clear();
    double best_error = 0;
    for (int n = 0; n < kNumSamples; ++n) {
      if (!random_stretch(b_, count)) continue;
      double size = 0;
      double area_sum = 0;
      for (const ChunkRun& part : stretch_) {
        size += part.size();
        area_sum += static_cast<double>(area(part));
      }
      const double error = std::abs(area_sum / size - static_cast<double>(goal) / count) * size;
      if (best.empty() || error < best_error) {
        best.swap(stretch_);
        best_error = error;
      }
    }
    for (const ChunkRun& part : best) {
      taken_.push_back(part);
      count -= part.size();
      goal -= area(part);
    }
  }
  return count == 0;
}

void Refiner::touch(const ChunkRun& part) {
  for (size_t i = components_.of_chunk(part.begin); i < components_.size() && components_[i].first < part.end; ++i) {
    if (!components_[i].sees_keys || components_[i].last - components_[i].first < 2) continue;
    if (std::find(touched_.begin(), touched_.end(), i) == touched_.end()) touched_.push_back(i);
  }
}

// Adds to owned_ what of a run is `rank`'s, after the exchange if `tried`.
void Refiner::collect(const ChunkRun& run, int run_rank, int rank, bool tried) {
  const auto add = [&](int begin, int end) {
    if (begin >= end) return;
    if (!owned_.empty() && owned_.back().end == begin) {
      owned_.back().end = end;
    } else {
      owned_.push_back({begin, end});
    }
  };
  work_ += kWorkOfRun;
  if (!tried || (run_rank != a_ && run_rank != b_)) {
    if (run_rank == rank) add(run.begin, run.end);
    return;
  }
  const std::span<const ChunkRun> leaving =
      run_rank == a_ ? std::span<const ChunkRun>(given_) : std::span<const ChunkRun>(taken_);
  int done = run.begin;
  while (done < run.end) {
    ChunkRun next{run.end, run.end};  // the first part that leaves from here on
    for (const ChunkRun& part : leaving) {
      if (part.end > done && part.begin < next.begin) next = part;
    }
    next.begin = std::max(next.begin, done);
    next.end = std::min(next.end, run.end);
    if (run_rank == rank) {
      add(done, next.begin);
    } else {
      add(next.begin, next.end);
    }
    done = std::max(next.end, done + 1);
  }
}

// The runs of a component that are `rank`'s, into owned_.
void Refiner::collect_owned(size_t index, int rank, bool tried) {
  const MaskComponent& component = components_[index];
  owned_.clear();
  if (component.own > component.first) {
    collect({component.first, component.own}, at(rank_, at(begin_, component.own - 1)), rank, tried);
  }
  for (int begin = component.own; begin < component.last; begin = at(end_, begin)) {
    const int run_rank = at(rank_, begin);
    if (run_rank == rank || (tried && (run_rank == a_ || run_rank == b_))) {
      collect({begin, at(end_, begin)}, run_rank, rank, tried);
    }
  }
}

// Counts the touched components of both ranks again. False, and early, when the exchange cannot be worth it: when
// the change of rows and of excess together reaches `limit`.
bool Refiner::count_touched(double limit, int64_t& rows_change) {
  touched_.clear();
  new_costs_.clear();
  for (const ChunkRun& part : given_) touch(part);
  for (const ChunkRun& part : taken_) touch(part);
  rows_change = 0;
  for (const size_t component : touched_) {
    const int64_t* costs = &cost_[component * static_cast<size_t>(cp_size_)];
    rows_change -= costs[a_] + costs[b_];
    work_ += kWorkOfCount;
  }
  for (const size_t component : touched_) {
    for (const int rank : {a_, b_}) {
      if (static_cast<double>(rows_change) >= limit) return false;
      collect_owned(component, rank, true);
      work_ += kWorkOfRun * static_cast<int64_t>(owned_.size());
      new_costs_.push_back(components_.remote_rows(component, owned_));
      rows_change += new_costs_.back();
    }
  }
  return static_cast<double>(rows_change) < limit;
}

// The run of the rank whose first or last chunk weighs most.
int Refiner::heavy_run_begin(int rank) {
  const std::vector<int>& runs = runs_of_[static_cast<size_t>(rank)];
  work_ += static_cast<int64_t>(runs.size()) * kWorkOfRun;
  const auto heaviest = [&](int begin) {
    return std::max(area({begin, begin + 1}), area({at(end_, begin) - 1, at(end_, begin)}));
  };
  return *std::max_element(runs.begin(), runs.end(), [&](int x, int y) { return heaviest(x) < heaviest(y); });
}

// A run of chunks of rank a_ that rank b_ may get. False when there is none this time.
bool Refiner::choose_gift() {
  const uint64_t dice = random();
  const int heaviest = static_cast<int>(std::max_element(area_of_.begin(), area_of_.end()) - area_of_.begin());
  const bool mend = area_of_[static_cast<size_t>(heaviest)] > area_limit_ && dice % 2 == 0;
  // A grave overload comes from few chunks that weigh most: one of those should go, and to where there is most room.
  const bool grave = mend && area_of_[static_cast<size_t>(heaviest)] > area_limit_ + mean_area_ / 32;
  int begin = 0;
  if (mend && (dice >> 11) % (grave ? 2 : 16) == 0) {
    begin = heavy_run_begin(heaviest);
  } else if (!mend && (dice >> 18) % 4 != 0 && !split_.empty()) {
    // Where a component is split there is something to gain.
    const MaskComponent& component = components_[split_[static_cast<size_t>(random_below(split_.size()))]];
    int num_runs = component.own > component.first ? 1 : 0;
    for (int c = component.own; c < component.last; c = at(end_, c)) ++num_runs;
    work_ += num_runs * kWorkOfRun;
    int chosen = random_below(static_cast<size_t>(num_runs));
    begin = component.own > component.first ? at(begin_, component.own - 1) : component.own;
    for (; chosen > 0; --chosen) begin = at(end_, begin);
  } else {
    const int rank = mend ? heaviest : random_below(static_cast<size_t>(cp_size_));
    const std::vector<int>& runs = runs_of_[static_cast<size_t>(rank)];
    begin = runs[static_cast<size_t>(random_below(runs.size()))];
  }
  const ChunkRun run{begin, at(end_, begin)};
  a_ = at(rank_, begin);
  // Mostly to the rank that has the rows before or after, where a cut may close.
  b_ = random_below(static_cast<size_t>(cp_size_));
  if (mend && (dice >> 15) % (grave ? 2 : 8) == 0) {
    b_ = static_cast<int>(std::min_element(area_of_.begin(), area_of_.end()) - area_of_.begin());
  }
  const bool forwards = (dice >> 9) % 2 == 0;
  if (!mend && dice % 8 != 1) {
    const bool to_before = dice % 16 < 8;
    if (to_before && run.begin > 0) b_ = at(rank_, at(begin_, run.begin - 1));
    if (!to_before && run.end < static_cast<int>(rank_.size())) b_ = at(rank_, run.end);
  }
  if (a_ == b_) return false;
  int count = (dice >> 8) % 2 == 0 || run.size() == 1 ? run.size() : 1 + random_below(static_cast<size_t>(run.size()));
  // A little area is found in few chunks.
  if (mend && (dice >> 10) % 2 == 0) count = 1 + random_below(static_cast<size_t>(std::min(run.size(), 4)));
  // Several neighbours together leave fewer cuts than one by one.
  if ((dice >> 25) % 4 == 0) count <<= (dice >> 27) % 5;
  given_.clear();
  extend(begin, count, forwards, given_);
  return true;
}

// Tries one exchange and keeps it when it changes rows and excess together by less than `limit`.
bool Refiner::propose(double limit) {
  work_ += kWorkOfProposal;
  if (!choose_gift()) return false;
  const int64_t area_a = area_of_[static_cast<size_t>(a_)];
  const int64_t area_b = area_of_[static_cast<size_t>(b_)];
  const int64_t excess_before = excess(area_a) + excess(area_b);
  int count = 0;
  int64_t gift = 0;
  for (const ChunkRun& part : given_) {
    count += part.size();
    gift += area(part);
  }
  taken_.clear();
  // What goes back should leave both ranks with equal areas where one is overloaded, and as they were elsewhere.
  if (!take_back(count, excess_before > 0 ? (area_b - area_a) / 2 + gift : gift)) return false;
  int64_t change = -gift;  // of rank a_'s area
  for (const ChunkRun& part : taken_) change += area(part);
  const int64_t excess_change = excess(area_a + change) + excess(area_b - change) - excess_before;
  int64_t rows = 0;
  if (!count_touched(limit - static_cast<double>(excess_change), rows)) return false;
  for (size_t i = 0; i < touched_.size(); ++i) {
    int64_t* costs = &cost_[touched_[i] * static_cast<size_t>(cp_size_)];
    costs[a_] = new_costs_[2 * i];
    costs[b_] = new_costs_[2 * i + 1];
  }
  remote_rows_ += rows;
  for (const ChunkRun& part : given_) move(part, b_);
  for (const ChunkRun& part : taken_) move(part, a_);
  for (const size_t component : touched_) update_split(component);
  return true;
}

Refiner::Score Refiner::current() const {
  const int64_t largest = *std::max_element(area_of_.begin(), area_of_.end());
  const double overload = static_cast<double>(largest - area_limit_) / static_cast<double>(mean_area_);
  return {remote_rows_, std::max(0.0, overload)};
}

Refiner::Score Refiner::score(const std::vector<int>& ranks, double tolerance) {
  start(ranks, tolerance);
  count_remote_rows(false);
  return current();
}

Refiner::Score Refiner::run(std::vector<int>& ranks, const RefineOptions& options) {
  start(ranks, options.tolerance);
  count_remote_rows(true);
  state_ = options.seed;
  // Overload is cheap for a while, so that the end may be worse than the start.
  excess_weight_ = kExcessWeights[kNumPhases - 1];
  const int64_t initial_total = total();
  const Score initial = current();
  const double max_work = static_cast<double>(std::max<int64_t>(1, options.max_work));
  work_ = 0;
  for (int64_t phase = 0; phase < kNumPhases; ++phase) {
    excess_weight_ = kExcessWeights[phase];
    while (work_ < options.max_work * (phase + 1) / kNumPhases) {
      double limit = 0;
      if (options.heat_rows > 0) {
        // A worse exchange is taken with probability exp(-change / heat) (Metropolis and others, 1953).
        const double heat = options.heat_rows * (1 - static_cast<double>(work_) / max_work);
        const double uniform = (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
        limit = -std::log(uniform) * heat;
      }
      propose(limit);
    }
  }
  if (total() > initial_total) return initial;
  store(ranks);
  return current();
}

}  // namespace tangram
