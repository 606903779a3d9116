// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/cache_simulation.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "schedule/multiprocessors.hpp"

namespace tangram::schedule {
namespace {

constexpr int64_t kMostSteps = 400'000;  // of all heads

/// As much as the simulated cache holds: 800 query tiles on an H200 fit measurements best, 700 to 1,000 about as well
/// (docs/experiments/2026-11-22-backward-dealing.md).
double held_bytes(const GpuModel& gpu) { return static_cast<double>(gpu.l2_bytes) * 5 / 6; }

/// 4 or 8 query tiles are simulated as one. With 8 the fit to measurements is a little worse, with 16 much.
int chunk_bits_of(int64_t steps) { return steps <= kMostSteps / 4 ? 2 : 3; }

/// Blocks in the order of their last use.
class Cache {
 public:
  Cache(size_t num_blocks, int64_t capacity) : links_(num_blocks + 1), held_(num_blocks, 0), free_(capacity) {
    links_.back() = {end(), end()};
  }

  /// Returns whether it was there.
  bool use(uint32_t block) {
    const bool hit = held_[block] != 0;
    if (hit) {
      unlink(block);
    } else {
      held_[block] = 1;
      if (--free_ < 0) {
        const uint32_t oldest = links_[end()].before;
        unlink(oldest);
        held_[oldest] = 0;
        ++free_;
      }
    }
    const uint32_t newest = links_[end()].after;
    links_[block] = {end(), newest};
    links_[newest].before = links_[end()].after = block;
    return hit;
  }

 private:
  struct Link {
    uint32_t before, after;
  };

  uint32_t end() const { return static_cast<uint32_t>(held_.size()); }
  void unlink(uint32_t block) {
    const auto [before, after] = links_[block];
    links_[before].after = after;
    links_[after].before = before;
  }

  std::vector<Link> links_;  // a ring, newest first; the last one is its begin
  std::vector<char> held_;
  int64_t free_;
};

int64_t all_steps(const Extents& extents, const AttnShape& shape) {
  int64_t steps = 0;
  for (const Extent& extent : extents.of_keys) steps += extent.count * shape.num_heads_q;
  return steps;
}

}  // namespace

bool is_cache_simulated(const Setting& in) {
  if (!choose_direction(in.extents).same_begin) return false;
  return head_bytes(in.shape) * in.shape.num_heads_q >= 4 * held_bytes(in.gpu) &&
         all_steps(in.extents, in.shape) <= kMostSteps;
}

CacheSimulation::CacheSimulation(const Setting& in, bool descending)
    : in_(in), descending_(descending), chunk_bits_(chunk_bits_of(all_steps(in.extents, in.shape))) {
  int64_t num_tiles = 0;
  for (const Extent& extent : in.extents.of_keys) num_tiles = std::max(num_tiles, extent.end);
  num_chunks_ = (num_tiles >> chunk_bits_) + 1;
}

double CacheSimulation::missed_share(const Dealing& how, bool heads_inside) {
  uses_.clear();
  const int group = in_.shape.num_heads_q / in_.shape.num_heads_kv;
  Multiprocessors machine(in_.gpu.multiprocessors);
  deal(in_.extents, in_.shape.num_heads_kv, how, [&](size_t i, int head, int piece, int pieces) {
    const Extent& extent = in_.extents.of_keys[i];
    if (extent.count == 0) return;
    const double from = in_.arrives.empty() ? 0 : in_.arrives[i];
    const double begin = machine.run(steps_of(extent, in_.shape, pieces, false), from);
    const int heads = group / pieces;
    add_uses(extent, head * group + piece * heads, heads, heads_inside, static_cast<int64_t>(begin));
  });
  sort_by_time();
  const double tile_bytes = 64.0 * 8 * in_.shape.head_dim;
  Cache cache(static_cast<size_t>(num_chunks_ * in_.shape.num_heads_q),
              std::max<int64_t>(static_cast<int64_t>(held_bytes(in_.gpu) / tile_bytes) >> chunk_bits_, 1));
  int64_t missed = 0, all = 0;
  for (const Use& use : sorted_) {
    if (!cache.use(use.block)) missed += use.tiles;
    all += use.tiles;
  }
  return all == 0 ? 0 : static_cast<double>(missed) / static_cast<double>(all);
}

void CacheSimulation::add_uses(const Extent& extent, int first_head, int heads, bool heads_inside, int64_t at) {
  // As if an item's tiles were neighbours; runs may share one.
  const int64_t count = std::min(extent.count, extent.end - extent.first);
  const int64_t first = descending_ ? extent.end - count : extent.first, last = first + count - 1;
  const int64_t first_chunk = first >> chunk_bits_, chunks = (last >> chunk_bits_) - first_chunk + 1;
  const auto use = [&](int head, int64_t n) {
    const int64_t chunk = first_chunk + (descending_ ? chunks - 1 - n : n);
    const int64_t tiles = std::min(last + 1, (chunk + 1) << chunk_bits_) - std::max(first, chunk << chunk_bits_);
    const int64_t block = (int64_t{first_head} + head) * num_chunks_ + chunk;
    uses_.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(block), static_cast<uint32_t>(tiles)});
    return tiles;
  };
  if (heads_inside) {
    for (int64_t n = 0; n < chunks; ++n) {
      int64_t tiles = 0;
      for (int head = 0; head < heads; ++head) tiles = use(head, n);
      at += tiles * heads;
    }
  } else {
    for (int head = 0; head < heads; ++head) {
      for (int64_t n = 0; n < chunks; ++n) at += use(head, n);
    }
  }
}

void CacheSimulation::sort_by_time() {
  uint32_t last = 0;
  for (const Use& use : uses_) last = std::max(last, use.at);
  begin_.assign(size_t{last} + 2, 0);
  for (const Use& use : uses_) ++begin_[use.at + 1];
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  sorted_.resize(uses_.size());
  for (const Use& use : uses_) sorted_[begin_[use.at]++] = use;
}

double missed_penalty(double missed) { return std::exp((0.056 + 0.354 * missed) * missed); }

}  // namespace tangram::schedule
