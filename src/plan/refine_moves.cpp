// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the search tries: a gift from one rank to another, and mostly something in return.
#include <algorithm>
#include <limits>

#include "plan/refine.hpp"

namespace tangram {

namespace {

constexpr int64_t kWorkOfRank = 2;
constexpr int kNumSamples = 6;   // runs that are compared before one goes back
constexpr int kMaxReturned = 3;  // runs that go back
constexpr size_t kMaxMoves = 16;

}  // namespace

// From 1 to `limit`, small ones as often as large ones.
int Refiner::random_size(int limit) {
  const uint64_t dice = random();
  int bits = 0;
  while ((limit >> bits) > 1) ++bits;
  const int top = 1 << (dice % static_cast<uint64_t>(bits + 1));
  return std::min<int>(limit, top + static_cast<int>((dice >> 32) % static_cast<uint64_t>(top)));
}

// Finds a better place to cut a run nearby: the begin of a slice, so that rows of a block which see the same keys stay
// together, or the begin of a tile. Sometimes the place itself, or few cuts would fit.
int Refiner::good_cut(const RunList::Run& run, int chunk) {
  const MaskComponent& component = components_[static_cast<size_t>(run.component)];
  const uint64_t dice = random() >> 40;
  if (component.last_slice - component.first_slice > 1 && dice % 8 < 4) {
    work_ += kWorkOfSample;
    return components_.nearest_slice(component, chunk);
  }
  return tile_chunks_ > 1 && dice % 8 != 7 ? whole_tiles(component, chunk) : chunk;
}

// One move of each run at most. Its borders inside the run may be put elsewhere.
bool Refiner::add_move(int run, int begin, int end, int to) {
  if (moves_.size() >= kMaxMoves) return false;
  const RunList::Run& cut = list_[run];
  if (begin > cut.begin) begin = std::max(cut.begin, good_cut(cut, begin));
  if (end < cut.end) end = std::min(cut.end, good_cut(cut, end));
  if (begin >= end) return false;
  for (const Move& move : moves_) {
    if (move.run == run) return false;
  }
  moves_.push_back({run, begin, end, to});
  return true;
}

// The whole run, or some chunks of an end of it.
void Refiner::give_part(int run, int to) {
  const int begin = list_[run].begin;
  const int end = list_[run].end;
  const uint64_t dice = random();
  const int size = dice % 2 == 0 ? end - begin : random_size(end - begin);
  if ((dice >> 1) % 2 == 0) {
    add_move(run, begin, begin + size, to);
  } else {
    add_move(run, end - size, end, to);
  }
}

// All that a rank has of a component.
void Refiner::give_all(size_t component, int from, int to) {
  const int last = list_.last_of(component);
  for (int run = list_.first_of(component);; run = list_[run].after) {
    if (list_[run].rank == from) add_move(run, list_[run].begin, list_[run].end, to);
    if (run == last) break;
  }
}

// Moves the border between two neighbouring runs.
bool Refiner::shift_cut(int run, int other) {
  const uint64_t dice = random();
  if (dice % 2 == 0) std::swap(run, other);
  a_ = list_[run].rank;
  b_ = list_[other].rank;
  if (a_ == b_) return false;
  const int size = random_size(list_[run].size());
  const int begin = list_[run].begin;
  const int end = list_[run].end;
  if (begin > list_[other].begin) return add_move(run, begin, begin + size, b_);
  return add_move(run, end - size, end, b_);
}

// Runs of rank b_ that go to rank a_, so that rows and areas of both fit best.
void Refiner::release() {
  int64_t chunks = 0;  // that b_ has too many
  int64_t gained = 0;
  for (const Move& move : moves_) {
    chunks += move.size();
    gained += area(move);
  }
  const size_t a = static_cast<size_t>(a_);
  const size_t b = static_cast<size_t>(b_);
  for (int n = 0; n < kMaxReturned; ++n) {
    // Taken out of the loop: half of the whole search are these samples.
    const double off_a = static_cast<double>(chunks_of_[a] - chunks - per_rank_);
    const double off_b = static_cast<double>(chunks_of_[b] + chunks - per_rank_);
    const double over_a = static_cast<double>(area_of_[a] - gained - area_limit_);
    const double over_b = static_cast<double>(area_of_[b] + gained - area_limit_);
    const auto price_with = [&](int64_t num_chunks, int64_t size) {
      const double count = static_cast<double>(num_chunks);
      const double area = static_cast<double>(size);
      return price(off_a + count, over_a + area) + price(off_b - count, over_b - area);
    };
    double best_price = price_with(0, 0);
    Move best;
    for (int sample = 0; sample < kNumSamples; ++sample) {
      const int run = random_run(b_);
      if (run < 0) return;
      int begin = list_[run].begin;
      int end = list_[run].end;
      if (chunks > 0 && end - begin > chunks && (sample & 1) == 0) {
        // Takes as much as there is too much.
        if (random() % 2 == 0) {
          end = begin + static_cast<int>(chunks);
        } else {
          begin = end - static_cast<int>(chunks);
        }
      }
      const Move sampled{run, begin, end, a_};
      const double sample_price = price_with(end - begin, area(sampled));
      if (sample_price >= best_price) continue;
      best_price = sample_price;
      best = sampled;
    }
    if (best.size() == 0 || !add_move(best.run, best.begin, best.end, a_)) return;
    chunks -= moves_.back().size();
    gained -= area(moves_.back());
  }
}

// Where a component is split there is something to gain.
bool Refiner::propose_in_split() {
  size_t component = split_[static_cast<size_t>(random_below(split_.size()))];
  const size_t other = split_[static_cast<size_t>(random_below(split_.size()))];
  if (rows_[other] > rows_[component]) component = other;
  const int first = list_.first_of(component);
  const int last = list_.last_of(component);
  int num_runs = 1;
  for (int run = first; run != last; run = list_[run].after) ++num_runs;
  work_ += num_runs * 2;
  const uint64_t dice = random();
  const auto pick = [&](int index) {
    int run = first;
    for (; index > 0; --index) run = list_[run].after;
    return run;
  };
  if (num_runs == 1) {
    // Only its first chunk lies elsewhere, with the end of the component before.
    const int before = list_[first].before;
    if (dice % 4 == 0) return shift_cut(before, first);
    const int run = dice % 2 == 0 ? before : first;
    a_ = list_[run].rank;
    b_ = list_[run == before ? first : before].rank;
    if (a_ == b_) return false;
    give_all(static_cast<size_t>(list_[run].component), a_, b_);
  } else {
    const int run = pick(random_below(static_cast<size_t>(num_runs)));
    const int partner = pick(random_below(static_cast<size_t>(num_runs)));
    a_ = list_[run].rank;
    b_ = list_[partner].rank;
    switch (dice % 4) {
      case 0:
        if (run == last) return false;
        if (!shift_cut(run, list_[run].after)) return false;
        break;
      case 1:
        if ((dice >> 8) % 2 == 0) b_ = random_below(static_cast<size_t>(cp_size_));
        if (a_ == b_) return false;
        give_all(component, a_, b_);
        break;
      default:
        if ((dice >> 8) % 4 == 0) b_ = random_below(static_cast<size_t>(cp_size_));
        if (a_ == b_) return false;
        give_part(run, b_);
    }
  }
  if ((dice >> 16) % 4 != 0) release();
  return true;
}

// From the rank that is off most to another.
bool Refiner::propose_mending() {
  int worst = 0;
  double worst_price = 0;
  for (int rank = 0; rank < cp_size_; ++rank) {
    const double price = price_of(rank);
    if (price <= worst_price) continue;
    worst = rank;
    worst_price = price;
  }
  work_ += kWorkOfRank * cp_size_;
  if (worst_price == 0) return propose_swap();
  const uint64_t dice = random();
  if (area_of_[static_cast<size_t>(worst)] > area_limit_ && (dice >> 16) % 4 < (is_mending_ ? 3 : 1))
    return propose_relief(worst);
  const auto lacks_rows = [&](size_t rank) { return chunks_of_[rank] < per_rank_ && area_of_[rank] <= area_limit_; };
  a_ = worst;
  b_ = random_below(static_cast<size_t>(cp_size_));
  if (lacks_rows(static_cast<size_t>(worst))) {
    if (dice % 2 == 0) {
      b_ = static_cast<int>(std::max_element(chunks_of_.begin(), chunks_of_.end()) - chunks_of_.begin());
    }
    std::swap(a_, b_);
  } else if (dice % 2 == 0) {
    b_ = static_cast<int>(std::min_element(area_of_.begin(), area_of_.end()) - area_of_.begin());
  }
  if (a_ == b_) return false;
  const int run = random_run(a_);
  if (run < 0) return false;
  give_part(run, b_);
  if ((dice >> 8) % 4 != 0) release();
  return true;
}

// Takes about as much area as is too much from a place where few rows of a rank hold it. Gives it to a rank that has
// other rows of the component and so needs little more for it.
bool Refiner::propose_relief(int overloaded) {
  a_ = overloaded;
  const auto density = [&](int run) { return static_cast<double>(list_[run].area) / list_[run].size(); };
  int run = random_run(a_);
  for (int n = 1; n < kNumSamples; ++n) {
    const int other = random_run(a_);
    if (density(other) > density(run)) run = other;
  }
  const size_t component = static_cast<size_t>(list_[run].component);
  b_ = -1;
  const int last = list_.last_of(component);
  for (int other = list_.first_of(component);; other = list_[other].after) {
    const int rank = list_[other].rank;
    work_ += kWorkOfRank;
    if (rank != a_ &&
        (b_ < 0 || random() % 4 == 0 || area_of_[static_cast<size_t>(rank)] < area_of_[static_cast<size_t>(b_)]))
      b_ = rank;
    if (other == last) break;
  }
  if (b_ < 0) return false;
  const uint64_t dice = random();
  const double excess = static_cast<double>(area_of_[static_cast<size_t>(a_)] - area_limit_);
  const double wanted = excess / std::max(1.0, density(run)) * (0.5 + static_cast<double>(dice % 256) / 128);
  const int size = 1 + static_cast<int>(std::min(wanted, static_cast<double>(list_[run].size() - 1)));
  const int begin = (dice >> 8) % 2 == 0 ? list_[run].begin : list_[run].end - size;
  add_move(run, begin, begin + size, b_);
  release();
  return true;
}

// Any run, mostly to a neighbour, where a cut may close.
bool Refiner::propose_swap() {
  const uint64_t dice = random();
  const int from = random_below(static_cast<size_t>(cp_size_));
  int run = random_run(from);
  if (run < 0) return false;
  a_ = from;
  b_ = random_below(static_cast<size_t>(cp_size_));
  const int neighbour = dice % 2 == 0 ? list_[run].before : list_[run].after;
  if ((dice >> 1) % 4 != 0 && neighbour >= 0) b_ = list_[neighbour].rank;
  if (a_ == b_) return false;
  if ((dice >> 3) % 2 == 0) {
    give_part(run, b_);
  } else {
    // Several neighbours together leave fewer cuts than one by one.
    for (int count = 1 << ((dice >> 4) % 4); count > 0 && run >= 0 && list_[run].rank == a_; --count) {
      if (!add_move(run, list_[run].begin, list_[run].end, b_)) break;
      run = (dice >> 8) % 2 == 0 ? list_[run].before : list_[run].after;
    }
  }
  if ((dice >> 16) % 4 != 0) release();
  return true;
}

bool Refiner::propose() {
  const uint64_t dice = random() % 4;
  if (dice == 0 || (is_mending_ && dice < 3)) return propose_mending();
  if (dice < 3 && !split_.empty()) return propose_in_split();
  return propose_swap();
}

}  // namespace tangram
