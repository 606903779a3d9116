// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/grid/grid_time.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace tangram {

GridTime play_chunks(std::span<const ChunkSeconds> chunks, bool hides) {
  GridTime time;
  double packed = 0, link_free = 0, transfers = 0;
  std::vector<double> arrived, returned;
  for (const ChunkSeconds& chunk : chunks) {
    packed += chunk.pack_s;
    link_free = std::max(link_free, packed) + chunk.in_s;
    arrived.push_back(link_free);
  }
  double computed = packed;
  for (size_t c = 0; c < chunks.size(); ++c) {
    computed = std::max(computed, arrived[c]) + chunks[c].compute_s;
    link_free = std::max(link_free, computed) + chunks[c].back_s;
    returned.push_back(link_free);
    time.compute_s += chunks[c].pack_s + chunks[c].compute_s + chunks[c].unpack_s;
    transfers += chunks[c].in_s + chunks[c].back_s;
  }
  for (size_t c = 0; c < chunks.size(); ++c) computed = std::max(computed, returned[c]) + chunks[c].unpack_s;
  time.total_s = hides ? computed : time.compute_s + transfers;
  return time;
}

namespace {

// The state of a ring of rings between two steps.
class Ring {
 public:
  explicit Ring(const RingPlay& play)
      : play_(play),
        num_groups_(play.hops.size()),
        start_(num_groups_),
        done_(num_groups_),
        busy_(num_groups_),
        inner_arrival_(num_groups_),
        outer_arrival_(num_groups_),
        grads_arrival_(num_groups_),
        link_free_(num_groups_) {}

  GridTime play() {
    for (size_t step = 0; step < num_groups_; ++step) {
      compute(step);
      send(step);
    }
    GridTime slowest;
    for (size_t g = 0; g < num_groups_; ++g) {
      const double total = play_.backward && num_groups_ > 1 ? std::max(done_[g], grads_arrival_[g]) : done_[g];
      if (total > slowest.total_s) slowest = {total, busy_[g]};
    }
    return slowest;
  }

 private:
  size_t inner() const { return static_cast<size_t>(play_.inner); }
  bool ends_round(size_t step) const { return (step + 1) % inner() == 0; }

  void compute(size_t step) {
    const std::vector<double>& arrival = step % inner() == 0 ? outer_arrival_ : inner_arrival_;
    for (size_t g = 0; g < num_groups_; ++g) {
      const double seconds = play_.compute_s[g * num_groups_ + step];
      start_[g] = step == 0 ? 0 : std::max(done_[g], arrival[g]);
      done_[g] = start_[g] + seconds;
      busy_[g] += seconds;
      if (!play_.hides && step > 0) {
        const HopSeconds& hop = step % inner() == 0 ? play_.hops[g].outer : play_.hops[g].inner;
        done_[g] += hop.block_s + hop.grads_s;
      }
      if (play_.backward && step > 0) done_[g] = std::max(done_[g], grads_arrival_[g]);
    }
  }

  // What leaves for the next step, for the next round, and gradients.
  void send(size_t step) {
    const bool next_inner = step + 1 < num_groups_ && !ends_round(step);
    const bool next_round = step % inner() == 0 && step + inner() < num_groups_;
    const size_t num_outer = num_groups_ / inner();
    for (size_t g = 0; g < num_groups_; ++g) {
      const size_t o = g / inner(), i = g % inner();
      const size_t before_o = (o + num_outer - 1) % num_outer, before_i = (i + inner() - 1) % inner();
      const RingHops& hops = play_.hops[g];
      if (next_inner) inner_arrival_[g] = arrive(g, start_, o * inner() + before_i, hops.inner, hops.inner.block_s);
      if (next_round) outer_arrival_[g] = arrive(g, start_, before_o * inner() + i, hops.outer, hops.outer.block_s);
      if (!play_.backward) continue;
      const HopSeconds& back = ends_round(step) ? hops.diagonal : hops.inner;
      const size_t source = (ends_round(step) ? before_o : o) * inner() + before_i;
      grads_arrival_[g] = arrive(g, done_, source, back, back.grads_s);
    }
  }

  // Both sides must have come so far, and the link must be free.
  double arrive(size_t group, const std::vector<double>& ready, size_t source, const HopSeconds& hop, double seconds) {
    double& link_free = link_free_[group][hop.between ? 1 : 0];
    link_free = std::max({ready[group], ready[source], link_free}) + seconds;
    return link_free;
  }

  const RingPlay& play_;
  size_t num_groups_;
  std::vector<double> start_, done_, busy_;
  std::vector<double> inner_arrival_, outer_arrival_, grads_arrival_;
  std::vector<std::array<double, 2>> link_free_;
};

}  // namespace

GridTime play_ring(const RingPlay& play) { return Ring(play).play(); }

GridTime play_turns(std::span<const TurnSeconds> turns, bool hides) {
  GridTime time;
  double transfers = 0, grads_s = 0;
  for (const TurnSeconds& turn : turns) {
    time.compute_s += turn.compute_s;
    time.total_s += std::max(turn.compute_s, turn.next_s + grads_s);
    grads_s = turn.grads_s;
    transfers += turn.next_s + turn.grads_s;
  }
  time.total_s += grads_s;
  if (!hides) time.total_s = time.compute_s + transfers;
  return time;
}

GridTime play_gather(double own_s, double others_s, double gather_s, double scatter_s, bool hides) {
  const double compute = own_s + others_s;
  return {hides ? std::max(own_s, gather_s) + others_s + scatter_s : compute + gather_s + scatter_s, compute};
}

}  // namespace tangram
