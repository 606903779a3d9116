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
constexpr int64_t kExcessWeights[] = {1, 3, 10, 100};
constexpr int64_t kNumPhases = std::size(kExcessWeights);
constexpr int kNumSamples = 4;  // runs that are compared by area before one goes back
// Work besides looking at chunks, measured.
constexpr int64_t kWorkOfProposal = 40;
constexpr int64_t kWorkOfExchange = 160;
constexpr int64_t kWorkOfCount = 30;  // a cache miss or two
constexpr int kMaxParts = 8;          // runs that a rank may give back for one run that it receives

}  // namespace

Refiner::Refiner(std::span<const AttnSlice> slices, int64_t chunk_size, std::vector<int64_t> chunk_areas, int cp_size)
    : chunk_size_(chunk_size),
      cp_size_(cp_size),
      num_chunks_(static_cast<int>(chunk_areas.size())),
      prefix_(chunk_areas.size() + 1),
      component_of_chunk_(chunk_areas.size(), -1) {
  std::partial_sum(chunk_areas.begin(), chunk_areas.end(), prefix_.begin() + 1);
  mean_area_ = std::max<int64_t>(1, prefix_.back() / cp_size);
  find_components(slices);
  collect_keys(slices);
}

void Refiner::find_components(std::span<const AttnSlice> slices) {
  std::vector<Range> hulls;
  hulls.reserve(slices.size());
  for (const AttnSlice& slice : slices) hulls.push_back(hull(slice.q_range, slice.k_range));
  std::sort(hulls.begin(), hulls.end());
  size_t num_entries = 0;
  const auto add = [&](const Range& rows) {
    Component component{rows, static_cast<int>(rows.begin / chunk_size_),
                        static_cast<int>((rows.end + chunk_size_ - 1) / chunk_size_), num_entries};
    num_entries += static_cast<size_t>(component.last - component.first);
    for (int c = component.first; c < component.last; ++c) {
      int& of_chunk = component_of_chunk_[static_cast<size_t>(c)];
      if (of_chunk < 0) of_chunk = static_cast<int>(components_.size());
    }
    components_.push_back(component);
  };
  Range rows;
  for (const Range& next : hulls) {
    if (!rows.empty() && next.begin >= rows.end) {
      add(rows);
      rows = next;
    } else {
      rows = hull(rows, next);
    }
  }
  if (!rows.empty()) add(rows);
  entries_.resize(num_entries);
}

void Refiner::collect_keys(std::span<const AttnSlice> slices) {
  // (entry, keys) of every slice in every chunk, then grouped by entry.
  std::vector<std::pair<size_t, Range>> found;
  for (const AttnSlice& slice : slices) {
    const auto component = std::upper_bound(components_.begin(), components_.end(), slice.q_range.begin,
                                            [](int64_t row, const Component& c) { return row < c.rows.end; });
    for (int64_t c = slice.q_range.begin / chunk_size_; c * chunk_size_ < slice.q_range.end; ++c) {
      const AttnSlice part = cut_rows(slice, {c * chunk_size_, (c + 1) * chunk_size_});
      found.push_back({component->first_entry + static_cast<size_t>(c - component->first), part.k_range});
    }
  }
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i < found.size();) {
    const size_t entry = found[i].first;
    entries_[entry].begin = keys_.size();
    for (; i < found.size() && found[i].first == entry; ++i) {
      const Range& keys = found[i].second;
      if (keys_.size() > entries_[entry].begin && keys.begin <= keys_.back().end) {
        keys_.back().end = std::max(keys_.back().end, keys.end);
      } else {
        keys_.push_back(keys);
      }
    }
    entries_[entry].end = keys_.size();
  }
}

int64_t Refiner::remote_rows_of(size_t index, int rank) {
  const Component& component = components_[index];
  work_ += component.last - component.first;
  scratch_.clear();
  bool sorted = true;
  const Entry* entry = &entries_[component.first_entry];
  for (int c = component.first; c < component.last; ++c, ++entry) {
    if (ranks_[static_cast<size_t>(c)] != rank) continue;
    for (size_t k = entry->begin; k < entry->end; ++k) {
      const Range& keys = keys_[k];
      if (!scratch_.empty() && scratch_.back().begin <= keys.begin && keys.begin <= scratch_.back().end) {
        scratch_.back().end = std::max(scratch_.back().end, keys.end);
        continue;
      }
      sorted = sorted && (scratch_.empty() || scratch_.back().begin <= keys.begin);
      scratch_.push_back(keys);
    }
  }
  if (scratch_.empty()) return 0;
  work_ += 4 * static_cast<int64_t>(scratch_.size());
  if (!sorted) std::sort(scratch_.begin(), scratch_.end());
  int64_t rows = 0;
  int64_t done = 0;  // keys before it are counted
  for (const Range& range : scratch_) {
    const Range fresh{std::max(range.begin, done), range.end};
    if (fresh.empty()) continue;
    rows += fresh.size();
    done = fresh.end;
    for (int64_t c = fresh.begin / chunk_size_; c * chunk_size_ < fresh.end; ++c) {
      if (ranks_[static_cast<size_t>(c)] != rank) continue;
      rows -= intersect(fresh, {c * chunk_size_, (c + 1) * chunk_size_}).size();
    }
  }
  return rows;
}

// Rows that are worth an area above the limit.
int64_t Refiner::excess(int64_t area) const {
  if (area <= area_limit_) return 0;
  const double share = static_cast<double>(area - area_limit_) / static_cast<double>(mean_area_);
  return static_cast<int64_t>(share * static_cast<double>(excess_weight_ * num_chunks_ * chunk_size_)) + 1;
}

void Refiner::start(std::vector<int> ranks, double tolerance) {
  ranks_ = std::move(ranks);
  area_limit_ = mean_area_ + static_cast<int64_t>(static_cast<double>(mean_area_) * tolerance);
  area_of_.assign(static_cast<size_t>(cp_size_), 0);
  chunks_of_.resize(static_cast<size_t>(cp_size_));
  for (std::vector<int>& chunks : chunks_of_) chunks.clear();
  slot_.resize(static_cast<size_t>(num_chunks_));
  for (int c = 0; c < num_chunks_; ++c) {
    std::vector<int>& chunks = chunks_of_[static_cast<size_t>(ranks_[static_cast<size_t>(c)])];
    slot_[static_cast<size_t>(c)] = static_cast<int>(chunks.size());
    chunks.push_back(c);
    area_of_[static_cast<size_t>(ranks_[static_cast<size_t>(c)])] +=
        prefix_[static_cast<size_t>(c) + 1] - prefix_[static_cast<size_t>(c)];
  }
}

// Counts the remote rows of all components, and keeps them by component and rank if `keep`.
void Refiner::count_remote_rows(bool keep) {
  const size_t num_ranks = static_cast<size_t>(cp_size_);
  if (keep) cost_.assign(components_.size() * num_ranks, 0);
  std::vector<size_t> counted(num_ranks, components_.size());  // the last component of each rank
  remote_rows_ = 0;
  split_.clear();
  for (size_t i = 0; i < components_.size(); ++i) {
    // Most components lie on one rank, which has nothing to receive, or on few.
    const auto first = ranks_.begin() + components_[i].first;
    const auto last = ranks_.begin() + components_[i].last;
    if (std::all_of(first, last, [&](int rank) { return rank == *first; })) continue;
    split_.push_back(i);
    for (auto at = first; at != last; ++at) {
      const size_t rank = static_cast<size_t>(*at);
      if (counted[rank] == i) continue;
      counted[rank] = i;
      const int64_t rows = remote_rows_of(i, *at);
      if (keep) cost_[i * num_ranks + rank] = rows;
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

// The chunks around `chunk` of the same rank and component.
Refiner::Part Refiner::run_around(int chunk) {
  const int rank = ranks_[static_cast<size_t>(chunk)];
  const int component = component_of_chunk_[static_cast<size_t>(chunk)];
  const auto same = [&](int c) {
    return ranks_[static_cast<size_t>(c)] == rank && component_of_chunk_[static_cast<size_t>(c)] == component;
  };
  Part part{chunk, chunk + 1};
  while (part.begin > 0 && same(part.begin - 1)) --part.begin;
  while (part.end < num_chunks_ && same(part.end)) ++part.end;
  work_ += part.end - part.begin;
  return part;
}

void Refiner::move(const Part& part, int to) {
  const int from = ranks_[static_cast<size_t>(part.begin)];
  area_of_[static_cast<size_t>(from)] -= area(part);
  area_of_[static_cast<size_t>(to)] += area(part);
  std::vector<int>& source = chunks_of_[static_cast<size_t>(from)];
  std::vector<int>& target = chunks_of_[static_cast<size_t>(to)];
  for (int c = part.begin; c < part.end; ++c) {
    ranks_[static_cast<size_t>(c)] = to;
    // The last of the source fills the gap.
    int& slot = slot_[static_cast<size_t>(c)];
    source[static_cast<size_t>(slot)] = source.back();
    slot_[static_cast<size_t>(source.back())] = slot;
    source.pop_back();
    slot = static_cast<int>(target.size());
    target.push_back(c);
  }
  work_ += 4 * (part.end - part.begin);
}

// A run of rank `from`, at most `count` long; empty when it fell on `moved`.
Refiner::Part Refiner::random_run(int from, int count, const Part& moved) {
  const std::vector<int>& own = chunks_of_[static_cast<size_t>(from)];
  const int chunk = own[static_cast<size_t>(random_below(static_cast<int>(own.size())))];
  if (moved.begin <= chunk && chunk < moved.end) return {};
  Part part = run_around(chunk);
  if (part.begin < moved.end && moved.end <= chunk) part.begin = moved.end;
  if (part.end > moved.begin && chunk < moved.begin) part.end = moved.begin;
  if (part.end - part.begin > count) {
    if (random() % 2 == 0) {
      part.end = part.begin + count;
    } else {
      part.begin = part.end - count;
    }
  }
  return part;
}

// Moves runs of `count` chunks in all from rank `from` to `to`, none of what just came there, with an area near `goal`.
bool Refiner::take_back(int from, int to, int count, int64_t goal, const Part& moved) {
  for (int tries = 0; tries < 2 * kMaxParts && static_cast<int>(taken_.size()) < kMaxParts; ++tries) {
    Part best;
    double best_error = 0;
    for (int n = 0; n < kNumSamples; ++n) {
      const Part part = random_run(from, count, moved);
      if (part.begin == part.end) continue;
      const double size = part.end - part.begin;
      const double error = std::abs(static_cast<double>(area(part)) / size - static_cast<double>(goal) / count) * size;
      if (best.begin == best.end || error < best_error) {
        best = part;
        best_error = error;
      }
    }
    if (best.begin == best.end) continue;
    move(best, to);
    taken_.push_back(best);
    count -= best.end - best.begin;
    goal -= area(best);
    if (count == 0) return true;
  }
  return false;
}

void Refiner::touch(const Part& part) {
  for (int c = part.begin; c < part.end; ++c) {
    int component = component_of_chunk_[static_cast<size_t>(c)];
    if (component < 0) continue;
    for (; component < static_cast<int>(components_.size()) && components_[static_cast<size_t>(component)].first <= c;
         ++component) {
      const size_t index = static_cast<size_t>(component);
      if (std::find(touched_.begin(), touched_.end(), index) == touched_.end()) touched_.push_back(index);
    }
  }
}

// Counts the touched components of ranks a and b again. False, and early, when the exchange cannot be worth it: when
// the change of rows and of excess together reaches `limit`.
bool Refiner::count_touched(int a, int b, double limit, int64_t& rows_change) {
  touched_.clear();
  new_costs_.clear();
  for (const Part& part : given_) touch(part);
  for (const Part& part : taken_) touch(part);
  rows_change = 0;
  for (const size_t component : touched_) {
    const int64_t* costs = &cost_[component * static_cast<size_t>(cp_size_)];
    rows_change -= costs[a] + costs[b];
    work_ += kWorkOfCount;
  }
  for (const size_t component : touched_) {
    for (const int rank : {a, b}) {
      if (static_cast<double>(rows_change) >= limit) return false;
      new_costs_.push_back(remote_rows_of(component, rank));
      rows_change += new_costs_.back();
    }
  }
  return static_cast<double>(rows_change) < limit;
}

// A run of chunks of one rank and the rank that may get it. False when there is none this time.
bool Refiner::choose_gift(Part& part, int& a, int& b) {
  const uint64_t dice = random();
  const int heaviest = static_cast<int>(std::max_element(area_of_.begin(), area_of_.end()) - area_of_.begin());
  const bool mend = area_of_[static_cast<size_t>(heaviest)] > area_limit_ && dice % 2 == 0;
  // A grave overload comes from few chunks that weigh most: one of those should go, and to where there is most room.
  const bool grave = mend && area_of_[static_cast<size_t>(heaviest)] > area_limit_ + mean_area_ / 32;
  int chunk = random_below(num_chunks_);
  if (mend) {
    const std::vector<int>& own = chunks_of_[static_cast<size_t>(heaviest)];
    chunk = own[static_cast<size_t>(chunk) % own.size()];
    if ((dice >> 11) % (grave ? 2 : 16) == 0) {
      chunk =
          *std::max_element(own.begin(), own.end(), [&](int x, int y) { return area({x, x + 1}) < area({y, y + 1}); });
      work_ += static_cast<int64_t>(own.size());
    }
  } else if ((dice >> 18) % 4 != 0 && !split_.empty()) {
    // Where a component is split there is something to gain.
    const Component& component = components_[split_[random() % split_.size()]];
    chunk = component.first + random_below(component.last - component.first);
  }
  a = ranks_[static_cast<size_t>(chunk)];
  part = run_around(chunk);
  // Mostly to the rank that has the rows before or after, where a cut may close.
  b = random_below(cp_size_);
  if (mend && (dice >> 15) % (grave ? 2 : 8) == 0) {
    b = static_cast<int>(std::min_element(area_of_.begin(), area_of_.end()) - area_of_.begin());
  }
  if (!mend && dice % 8 != 1) {
    const int neighbour = dice % 16 < 8 ? part.begin - 1 : part.end;
    if (0 <= neighbour && neighbour < num_chunks_) b = ranks_[static_cast<size_t>(neighbour)];
  }
  const int size = part.end - part.begin;
  int count = (dice >> 8) % 2 == 0 || size == 1 ? size : 1 + random_below(size);
  // A little area is found in few chunks.
  if (mend && (dice >> 10) % 2 == 0) count = 1 + random_below(std::min(size, 4));
  if ((dice >> 9) % 2 == 0) {
    part.end = part.begin + count;
  } else {
    part.begin = part.end - count;
  }
  return a != b;
}

// Tries one exchange and keeps it when it changes rows and excess together by less than `limit`.
bool Refiner::propose(double limit) {
  work_ += kWorkOfProposal;
  Part part;
  int a = 0;
  int b = 0;
  if (!choose_gift(part, a, b)) return false;
  work_ += kWorkOfExchange;
  const auto excess_of_both = [&] {
    return excess(area_of_[static_cast<size_t>(a)]) + excess(area_of_[static_cast<size_t>(b)]);
  };
  const int64_t excess_before = excess_of_both();
  given_.assign(1, part);
  taken_.clear();
  move(part, b);
  // What goes back should leave both ranks with equal areas where one is overloaded, and as they were elsewhere.
  const int64_t surplus = area_of_[static_cast<size_t>(b)] - area_of_[static_cast<size_t>(a)];
  const int64_t goal = excess_before > 0 ? surplus / 2 : area(part);
  int64_t rows = 0;
  if (take_back(b, a, part.end - part.begin, goal, part) &&
      count_touched(a, b, limit - static_cast<double>(excess_of_both() - excess_before), rows)) {
    keep_exchange(a, b, rows);
    return true;
  }
  for (const Part& back : taken_) move(back, b);
  move(part, a);
  return false;
}

void Refiner::keep_exchange(int a, int b, int64_t rows_change) {
  for (size_t i = 0; i < touched_.size(); ++i) {
    int64_t* costs = &cost_[touched_[i] * static_cast<size_t>(cp_size_)];
    costs[a] = new_costs_[2 * i];
    costs[b] = new_costs_[2 * i + 1];
  }
  remote_rows_ += rows_change;
  for (const size_t component : touched_) update_split(component);
}

// Keeps the list of components that lie on more than one rank.
void Refiner::update_split(size_t index) {
  const Component& component = components_[index];
  const auto first = ranks_.begin() + component.first;
  const bool split = !std::all_of(first, ranks_.begin() + component.last, [&](int rank) { return rank == *first; });
  const auto at = std::find(split_.begin(), split_.end(), index);
  if (split && at == split_.end()) split_.push_back(index);
  if (!split && at != split_.end()) split_.erase(at);
  work_ += component.last - component.first + static_cast<int64_t>(split_.size());
}

Refiner::Score Refiner::score(const std::vector<int>& ranks, double tolerance) {
  start(ranks, tolerance);
  count_remote_rows(false);
  const int64_t largest = *std::max_element(area_of_.begin(), area_of_.end());
  const double overload = static_cast<double>(largest - area_limit_) / static_cast<double>(mean_area_);
  return {remote_rows_, std::max(0.0, overload)};
}

std::vector<int> Refiner::run(std::vector<int> ranks, const RefineOptions& options) {
  start(std::move(ranks), options.tolerance);
  count_remote_rows(true);
  state_ = options.seed;
  const auto total = [&] {
    int64_t sum = remote_rows_;
    for (const int64_t area : area_of_) sum += excess(area);
    return sum;
  };
  // Overload was cheap for a while, so that the end may be worse than the start.
  excess_weight_ = kExcessWeights[kNumPhases - 1];
  const std::vector<int> initial = ranks_;
  const int64_t initial_total = total();
  const double max_work = static_cast<double>(std::max<int64_t>(1, options.max_work));
  work_ = 0;
  for (int64_t phase = 0; phase < kNumPhases; ++phase) {
    excess_weight_ = kExcessWeights[phase];
    std::vector<int> best;
    int64_t best_total = total();
    while (work_ < options.max_work * (phase + 1) / kNumPhases) {
      double limit = 0;
      if (options.heat_rows > 0) {
        // A worse exchange is taken with probability exp(-change / heat) (Metropolis and others, 1953).
        const double heat = options.heat_rows * (1 - static_cast<double>(work_) / max_work);
        const double uniform = (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
        limit = -std::log(uniform) * heat;
      }
      if (!propose(limit) || options.heat_rows == 0 || phase + 1 < kNumPhases) continue;
      if (const int64_t now = total(); now < best_total) {
        best = ranks_;
        best_total = now;
      }
    }
    if (!best.empty() && total() > best_total) {
      start(std::move(best), options.tolerance);
      count_remote_rows(true);
    }
  }
  return total() <= initial_total ? std::move(ranks_) : initial;
}

}  // namespace tangram
