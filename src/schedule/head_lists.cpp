// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/head_lists.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "core/require.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/tile_schedule_candidates.hpp"

namespace tangram::schedule {
namespace {

/// How many masks are scheduled together: as many as `cache_bytes` hold, with `bytes` a mask that multiprocessors read
/// again. But a section must last four times as long as the longest work tile. Otherwise multiprocessors would wait for
/// the work tiles with which the last section begins.
int masks_together(int num_masks, int64_t bytes, int64_t cache_bytes, int64_t total_steps, int64_t longest_steps,
                   int num_sms) {
  const int64_t most = num_masks;
  const int64_t fitting = std::clamp<int64_t>(cache_bytes / std::max<int64_t>(bytes, 1), 1, most);
  const int64_t total = std::max<int64_t>(total_steps, 1);
  const int64_t balanced = std::min((4 * longest_steps * num_sms * most + total - 1) / total, most);
  const int64_t wanted = std::max(fitting, balanced), sections = (most + wanted - 1) / wanted;
  return static_cast<int>((most + sections - 1) / sections);
}

/// The part of a GPU that one of `shares` masks has, if they run together.
GpuModel share_of(const GpuModel& gpu, int shares) {
  GpuModel share = gpu;
  share.multiprocessors = std::max(gpu.multiprocessors / shares, 1);
  share.l2_bytes = gpu.l2_bytes / shares;
  return share;
}

template <typename T>
int32_t append(std::vector<T>& to, const std::vector<T>& from) {
  const size_t begin = to.size();
  require(begin + from.size() < size_t{std::numeric_limits<int32_t>::max()},
          "prepare_head_masks: the lists of all masks together must stay below 2^31 entries (got {})",
          begin + from.size());
  to.insert(to.end(), from.begin(), from.end());
  return static_cast<int32_t>(begin);
}

/// Runs and intervals of one mask behind those of others; returns by how many runs it moved.
template <typename Lists>
int32_t append_runs(Lists& to, const std::vector<TileRange>& runs, const std::vector<RowInterval>& intervals,
                    int32_t first_group = 0) {
  const int32_t first_run = append(to.runs, runs), first_interval = append(to.intervals, intervals);
  for (auto run = to.runs.begin() + first_run; run != to.runs.end(); ++run) {
    if (run->interval_begin >= 0) run->interval_begin += first_interval;
    if (run->group_begin >= 0) run->group_begin += first_group;
  }
  return first_run;
}

/// The work tiles of one mask, with the runs where they lie among those of all masks.
struct Tiles {
  std::vector<MaskTile> work_tiles;
  std::vector<int64_t> steps;
  std::vector<int32_t> part_rows;
};

class TileJoiner {
 public:
  TileJoiner(std::span<const TileList> masks, const AttnShape& shape, int64_t num_groups, const GpuModel& gpu)
      : masks_(masks), shape_(shape), groups_per_mask_(num_groups / static_cast<int64_t>(masks.size())), gpu_(gpu) {}

  ForwardLists join(const GatherableTiles& gatherable, bool may_split) {
    AttnShape of_mask = shape_;
    of_mask.num_heads_q /= num_masks();
    of_mask.num_heads_kv /= num_masks();
    const std::vector<SplitOrGathered> chosen =
        split_or_gather(masks_, of_mask, groups_per_mask_, share_of(gpu_, num_masks()), gatherable, may_split);
    const bool gathers =
        std::any_of(chosen.begin(), chosen.end(), [](const auto& one) { return one.gathered.has_value(); });
    if (gathers && gatherable.num_groups > 0) groups_per_mask_ = gatherable.num_groups;
    const bool in_parts =
        std::any_of(chosen.begin(), chosen.end(), [](const SplitOrGathered& one) { return one.parts.has_value(); });
    for (size_t g = 0; g < masks_.size(); ++g) {
      const auto& [tiles, parts, gathered] = chosen[g];
      if (parts) {
        add_parts(*parts, static_cast<int32_t>(g));
        continue;
      }
      if (gathered) {
        lists_.choice.gathers = true;
        const int32_t first_group = append(lists_.key_groups, gathered->groups);
        add(gathered->work_tiles, gathered->runs, tiles->intervals, first_group);
      } else {
        add(tiles->work_tiles, tiles->runs, tiles->intervals);
      }
      if (in_parts) tiles_.back().part_rows.assign(tiles_.back().work_tiles.size(), -1);
    }
    for_each_work_tile();
    return std::move(lists_);
  }

 private:
  int num_masks() const { return static_cast<int>(masks_.size()); }

  void add(const std::vector<MaskTile>& work_tiles, const std::vector<TileRange>& runs,
           const std::vector<RowInterval>& intervals, int32_t first_group = 0) {
    const int32_t first_run = append_runs(lists_, runs, intervals, first_group);
    const int64_t block_n = masks_[0].shape.block_n;
    Tiles& tiles = tiles_.emplace_back();
    for (const MaskTile& work_tile : work_tiles) {
      tiles.steps.push_back(work_tile_steps(work_tile, runs, block_n));
      tiles.work_tiles.push_back(
          {work_tile.row_begin, work_tile.row_end, work_tile.run_begin + first_run, work_tile.run_end + first_run});
    }
  }

  void add_parts(const PartList& parts, int32_t mask) {
    add(parts.list.work_tiles, parts.list.runs, parts.list.intervals);
    tiles_.back().part_rows = parts.first_rows;
    append(lists_.part_tiles, parts.tiles);
    lists_.part_heads.resize(lists_.part_tiles.size(), mask * (shape_.num_heads_q / num_masks()));
    lists_.num_part_rows = std::max(lists_.num_part_rows, parts.num_rows);
  }

  int masks_of_section() const {
    int64_t total = 0, longest = 0;
    for (const Tiles& tiles : tiles_) {
      total += groups_per_mask_ * std::accumulate(tiles.steps.begin(), tiles.steps.end(), int64_t{0});
      for (const int64_t steps : tiles.steps) longest = std::max(longest, steps);
    }
    const int64_t bytes =
        shape_.seqlen_k * (shape_.head_dim + shape_.head_dim_v) * 2 * (shape_.num_heads_kv / num_masks());
    return masks_together(num_masks(), bytes, kept_in_l2(gpu_), total, longest, gpu_.multiprocessors);
  }

  void for_each_work_tile() {
    const size_t heads_in_l2 = static_cast<size_t>(masks_of_section());
    for (size_t begin = 0; begin < tiles_.size(); begin += heads_in_l2) {
      schedule_section(begin, std::min(begin + heads_in_l2, tiles_.size()));
    }
  }

  /// Sorts by length; equal lengths by their place in their masks.
  void schedule_section(size_t begin, size_t end) {
    struct Place {
      int64_t steps;
      size_t work_tile, mask;
    };
    std::vector<Place> places;
    for (size_t g = begin; g < end; ++g) {
      for (size_t i = 0; i < tiles_[g].work_tiles.size(); ++i) places.push_back({tiles_[g].steps[i], i, g});
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::tuple(-a.steps, a.work_tile, a.mask) < std::tuple(-b.steps, b.work_tile, b.mask);
    });
    for (const Place& place : places) {
      const Tiles& tiles = tiles_[place.mask];
      for (int64_t group = 0; group < groups_per_mask_; ++group) {
        lists_.work_tiles.push_back(tiles.work_tiles[place.work_tile]);
        lists_.work_tile_groups.push_back(
            static_cast<int32_t>(static_cast<int64_t>(place.mask) * groups_per_mask_ + group));
        if (!tiles.part_rows.empty()) lists_.part_rows.push_back(tiles.part_rows[place.work_tile]);
      }
    }
  }

  std::span<const TileList> masks_;
  const AttnShape& shape_;
  int64_t groups_per_mask_;
  const GpuModel& gpu_;
  std::vector<Tiles> tiles_;  // of each mask
  ForwardLists lists_;
};

int64_t steps_of(const std::vector<WorkTile>& work_tiles) {
  int64_t steps = 0;
  for (const WorkTile& work_tile : work_tiles) steps += work_tile.num_steps;
  return steps;
}

/// The work tiles of one mask, in the order of their schedule.
struct Queue {
  std::vector<WorkTile> work_tiles;
  size_t next = 0;
  int64_t steps_left = 0;
};

/// The next work tile is one of the mask that has most to do, so that all end together; each in its own order.
void schedule_section(std::vector<WorkTile>& scheduled, std::span<Queue> queues) {
  for (Queue& queue : queues) queue.steps_left = steps_of(queue.work_tiles);
  for (;;) {
    Queue* first = nullptr;
    for (Queue& queue : queues) {
      if (queue.next == queue.work_tiles.size()) continue;
      if (first == nullptr || queue.steps_left > first->steps_left) first = &queue;
    }
    if (first == nullptr) return;
    scheduled.push_back(first->work_tiles[first->next++]);
    first->steps_left -= scheduled.back().num_steps;
  }
}

class WorkJoiner {
 public:
  WorkJoiner(std::span<const TileList> transposed, std::span<const std::span<const AttnSlice>> slices,
             const AttnShape& shape, const GpuModel& gpu, BackwardCalls calls)
      : shape_(shape), calls_(calls), together_(masks_of_section(transposed, shape, gpu)) {
    const auto num_masks = static_cast<int>(transposed.size());
    AttnShape of_mask = shape;
    of_mask.num_heads_q /= num_masks;
    of_mask.num_heads_kv /= num_masks;
    for (int g = 0; g < num_masks; ++g) {
      const auto make = [&](const GpuModel& of_gpu, const TileScheduleOptions& options) {
        return make_work_list(transposed[static_cast<size_t>(g)], slices[static_cast<size_t>(g)], of_mask, of_gpu, {},
                              options);
      };
      if (calls != BackwardCalls::kDeterministic) {
        works_.push_back(make(gpu, {.calls = BackwardCalls::kDefault, .num_groups = num_masks, .group = g}));
      }
      if (calls != BackwardCalls::kDefault) {
        deterministic_.push_back(make(share_of(gpu, together_), {.calls = BackwardCalls::kDeterministic}));
      }
    }
  }

  WorkList join() {
    add_tables(calls_ == BackwardCalls::kDefault ? works_ : deterministic_);
    if (calls_ != BackwardCalls::kDeterministic) joined_.work_tiles = for_each_work_tile();
    if (calls_ != BackwardCalls::kDefault) {
      (calls_ == BackwardCalls::kBoth ? joined_.deterministic_work_tiles : joined_.work_tiles) = schedule_in_turns();
    }
    return std::move(joined_);
  }

 private:
  /// Masks per section of deterministic calls. Queries, dout and sums of dq of a head are what work tiles share
  /// (ScheduleCandidate::cached).
  static int masks_of_section(std::span<const TileList> transposed, const AttnShape& shape, const GpuModel& gpu) {
    const auto num_masks = static_cast<int>(transposed.size());
    if (has_few_heads(shape)) return num_masks;
    const int64_t heads = shape.num_heads_q / num_masks, group = shape.num_heads_q / shape.num_heads_kv;
    int64_t total = 0, longest = 0;
    for (const TileList& tiles : transposed) {
      for (const MaskTile& work_tile : tiles.work_tiles) {
        int64_t steps = 0;
        for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
          const TileRange& run = tiles.runs[static_cast<size_t>(r)];
          steps += (run.k_end - run.k_begin + tiles.shape.block_n - 1) / tiles.shape.block_n;
        }
        total += steps * heads;
        longest = std::max(longest, steps * group);
      }
    }
    return masks_together(num_masks, 8 * shape.seqlen_q * shape.head_dim * heads, gpu.l2_bytes + gpu.l2_bytes / 10,
                          total, longest, gpu.multiprocessors);
  }

  /// All but work tiles. The lists of both kinds of calls differ in nothing else but turns.
  void add_tables(const std::vector<WorkList>& works) {
    size_t most = 0;
    bool all_covered = true;
    joined_.zeroed_sums = false;
    for (const WorkList& work : works) {
      most = std::max(most, work.q_tiles.size());
      all_covered = all_covered && work.covered_queries.empty();
      joined_.zeroed_sums = joined_.zeroed_sums || work.zeroed_sums;
    }
    joined_.num_masks = static_cast<int32_t>(works.size());
    const auto end = static_cast<int32_t>(shape_.seqlen_q);
    for (const WorkList& work : works) {
      const auto first_tile = static_cast<int32_t>(joined_.q_tiles.size());
      append(joined_.q_tiles, work.q_tiles);
      joined_.q_tiles.resize(static_cast<size_t>(first_tile) + most, {end, end});
      if (!all_covered) {
        append(joined_.covered_queries, work.covered_queries);
        joined_.covered_queries.resize(joined_.q_tiles.size(), ~uint64_t{0});
      }
      first_runs_.push_back(append_runs(joined_, work.runs, work.intervals));
      const int32_t first_segment = append(joined_.dq_order_segments, work.dq_order_segments);
      for (auto it = joined_.dq_order_segments.begin() + first_segment; it != joined_.dq_order_segments.end(); ++it) {
        if (it->first_tile != kNoTile) it->first_tile += first_tile;
      }
      for (const RangeQueryTiles& run : work.run_tiles) {
        joined_.run_tiles.push_back({run.first + first_tile, run.end + first_tile, run.segment + first_segment});
      }
    }
  }

  /// Walks differ between masks, so that work tiles say theirs.
  std::vector<WorkTile> work_tiles_of(const WorkList& work, size_t mask, bool deterministic,
                                      int32_t first_accum_tile) const {
    const Walk& walk = deterministic ? work.deterministic_walk : work.walk;
    const int32_t heads_kv = shape_.num_heads_kv / joined_.num_masks, heads_q = shape_.num_heads_q / joined_.num_masks;
    std::vector<WorkTile> work_tiles = work.work_tiles;
    for (WorkTile& work_tile : work_tiles) {
      work_tile.run_begin += first_runs_[mask];
      work_tile.run_end += first_runs_[mask];
      work_tile.kv_head += static_cast<int32_t>(mask) * heads_kv;
      work_tile.head_begin += static_cast<int32_t>(mask) * heads_q;
      work_tile.head_end += static_cast<int32_t>(mask) * heads_q;
      work_tile.accum_tile += first_accum_tile;
      work_tile.flags |=
          (walk.descending ? kWorkTileDescending : 0) | (walk.heads_innermost ? kWorkTileHeadsInside : 0);
    }
    return work_tiles;
  }

  /// The work tiles of each mask where they would be if all heads saw it.
  std::vector<WorkTile> for_each_work_tile() {
    struct Assignment {
      double before;
      WorkTile work_tile;
    };
    std::vector<Assignment> all;
    int32_t accum_tiles = 0;
    for (size_t g = 0; g < works_.size(); ++g) {
      const std::vector<WorkTile> work_tiles = work_tiles_of(works_[g], g, false, accum_tiles);
      for (size_t i = 0; i < work_tiles.size(); ++i) all.push_back({works_[g].scheduled_before[i], work_tiles[i]});
      accum_tiles += works_[g].num_accum_tiles;
    }
    joined_.num_accum_tiles = std::max(joined_.num_accum_tiles, accum_tiles);
    std::stable_sort(all.begin(), all.end(),
                     [](const Assignment& a, const Assignment& b) { return a.before < b.before; });
    std::vector<WorkTile> work_tiles;
    work_tiles.reserve(all.size());
    for (const Assignment& scheduled : all) work_tiles.push_back(scheduled.work_tile);
    return work_tiles;
  }

  /// Schedule of deterministic calls: sections of masks. Work tiles of a mask wait for each other in the order in which
  /// the mask alone is scheduled.
  std::vector<WorkTile> schedule_in_turns() {
    int32_t accum_tiles = 0;
    std::vector<Queue> queues;
    for (size_t g = 0; g < deterministic_.size(); ++g) {
      queues.push_back({.work_tiles = work_tiles_of(deterministic_[g], g, true, accum_tiles)});
      accum_tiles += deterministic_[g].num_accum_tiles;
    }
    joined_.num_accum_tiles = std::max(joined_.num_accum_tiles, accum_tiles);
    std::vector<WorkTile> scheduled;
    for (size_t begin = 0; begin < queues.size(); begin += static_cast<size_t>(together_)) {
      const size_t count = std::min(static_cast<size_t>(together_), queues.size() - begin);
      schedule_section(scheduled, std::span(queues).subspan(begin, count));
    }
    return scheduled;
  }

  const AttnShape& shape_;
  BackwardCalls calls_;
  int together_;                                 // masks of a section of deterministic calls
  std::vector<WorkList> works_, deterministic_;  // of default calls, and of deterministic ones
  std::vector<int32_t> first_runs_;              // of each mask
  WorkList joined_;
};

}  // namespace

ForwardLists join_tiles(std::span<const TileList> masks, const AttnShape& shape, int64_t num_groups,
                        const GpuModel& gpu, const GatherableTiles& gatherable, bool may_split) {
  ForwardLists lists = TileJoiner(masks, shape, num_groups, gpu).join(gatherable, may_split);
  lists.num_masks = static_cast<int>(masks.size());
  return lists;
}

WorkList join_work(std::span<const TileList> transposed, std::span<const std::span<const AttnSlice>> slices,
                   const AttnShape& shape, const GpuModel& gpu, BackwardCalls calls) {
  return WorkJoiner(transposed, slices, shape, gpu, calls).join();
}

int64_t accum_tile_tables(int num_heads_q, int num_masks) {
  return num_heads_q == num_masks ? num_heads_q : num_heads_q + num_masks - 1;
}

int32_t accum_tile_stride(int32_t tiles_of_table, int heads_per_mask) {
  return heads_per_mask == 1 ? 0 : tiles_of_table;
}

}  // namespace tangram::schedule
