// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/work_list.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "core/require.hpp"
#include "schedule/heuristic_tile_schedule.hpp"
#include "schedule/tile_schedule.hpp"
#include "schedule/tile_schedule_heuristic.hpp"

namespace tangram::schedule {
namespace {

/// Sets the bits of `rows`.
void cover(std::vector<uint64_t>& words, const Range& rows) {
  for (int64_t i = rows.begin; i < rows.end;) {
    const int64_t end = std::min(rows.end, (i / 64 + 1) * 64);
    const uint64_t ones = end - i == 64 ? ~uint64_t{0} : ((uint64_t{1} << (end - i)) - 1) << (i % 64);
    words[static_cast<size_t>(i / 64)] |= ones;
    i = end;
  }
}

/// 64 bits from `row` on.
uint64_t bits_at(const std::vector<uint64_t>& words, int64_t row) {
  const auto word = static_cast<size_t>(row / 64);
  const int shift = static_cast<int>(row % 64);
  return shift == 0 ? words[word] : words[word] >> shift | words[word + 1] << (64 - shift);
}

struct Coverage {
  std::vector<uint64_t> queries, keys;
};

/// Has a bit for each row: whether the row is in a slice. Rows past the end of a tensor are read as zeros. Their bits
/// are set, so that kernels do not zero them again.
Coverage coverage(std::span<const AttnSlice> slices, const AttnShape& shape) {
  Coverage result;
  result.queries.resize(static_cast<size_t>(shape.seqlen_q / 64 + 4));
  result.keys.resize(static_cast<size_t>(shape.seqlen_k / 64 + 4));
  cover(result.queries, {shape.seqlen_q, static_cast<int64_t>(result.queries.size()) * 64});
  cover(result.keys, {shape.seqlen_k, static_cast<int64_t>(result.keys.size()) * 64});
  for (const AttnSlice& slice : slices) {
    const AttnSlice trimmed = canonical(slice);
    cover(result.queries, trimmed.q_range);
    cover(result.keys, trimmed.k_range);
  }
  return result;
}

/// How many steps have added to each query tile, as intervals of tiles with one count.
class Additions {
 public:
  /// Counts one more for tiles [begin, end); calls visit(first, last + 1, count before) for each interval, in order.
  template <typename Visit>
  void add(int64_t begin, int64_t end, const Visit& visit) {
    if (begin >= end) return;
    split(end);
    for (auto at = split(begin); at->first != end;) {
      auto next = std::next(at);
      visit(at->first, next->first, at->second++);
      at = next;
    }
    join(begin);
    join(end);
  }

 private:
  using Counts = std::map<int64_t, int32_t>;

  Counts::iterator split(int64_t tile) {
    const auto after = counts_.upper_bound(tile);
    return counts_.emplace_hint(after, tile, std::prev(after)->second);
  }
  void join(int64_t tile) {
    const auto at = counts_.find(tile);
    if (at != counts_.begin() && std::prev(at)->second == at->second) counts_.erase(at);
  }

  Counts counts_{{std::numeric_limits<int64_t>::min(), 0}};
};

/// Turns of deterministic calls: NOTE [turns] in src/attn/sm90/backward/dq_writer.cuh. A turn of AwaitedKeys is another
/// thing: the order of arrival.
void add_turns(WorkList& work) {
  Additions additions;
  // Every head sees the key tiles scheduled in the same order: the work tiles of the first head stand for all.
  for (const WorkTile& work_tile :
       work.deterministic_work_tiles.empty() ? work.work_tiles : work.deterministic_work_tiles) {
    if (work_tile.head_begin != 0) continue;
    for (int32_t i = work_tile.run_begin; i < work_tile.run_end; ++i) {
      const int32_t r = work.walk.descending ? work_tile.run_end - 1 - (i - work_tile.run_begin) : i;
      RangeQueryTiles& run = work.run_tiles[static_cast<size_t>(r)];
      const size_t begin = work.dq_order_segments.size();
      additions.add(run.first, run.end, [&](int64_t first, int64_t end, int32_t turn) {
        work.dq_order_segments.push_back({static_cast<int32_t>(work.walk.descending ? end - 1 : first), turn});
      });
      if (work.walk.descending)
        std::reverse(work.dq_order_segments.begin() + static_cast<std::ptrdiff_t>(begin), work.dq_order_segments.end());
      work.dq_order_segments.push_back({kNoTile, 0});
      run.segment = static_cast<int32_t>(begin);
    }
  }
}

/// Seconds from the begin of a call to its main kernel. The preprocess kernel reads out and dout of all rows, and may
/// zero the dq sums, at memory bandwidth.
double seconds_before(const AttnShape& shape, const GpuModel& gpu, bool zeroes_sums) {
  const int element_bytes = 4 * shape.head_dim_v + (zeroes_sums ? 4 * shape.head_dim : 0);
  return static_cast<double>(shape.seqlen_q) * shape.num_heads_q * element_bytes / gpu.stream_bytes_per_s;
}

/// Estimates when the keys of each key tile have arrived, in steps from `before_s` after the begin of the call. It
/// assumes that one link carries all awaited bytes. By index into of_keys; empty if all keys arrive while the
/// preprocess kernel runs. Then tiles are scheduled as if none were awaited.
std::vector<double> ready_in_steps(const TileList& tiles, const Extents& extents, const AttnShape& shape,
                                   const GpuModel& gpu, const AwaitedKeys& awaited_keys, double before_s) {
  if (awaited_keys.empty()) return {};
  const double cells = static_cast<double>(tiles.shape.block_m) * tiles.shape.block_n;
  const double step_s = gpu.backward_tile_seconds(cells, 6.0 * shape.head_dim + 4.0 * shape.head_dim_v);
  const double bytes =
      2.0 * static_cast<double>(awaited_keys.num_keys()) * shape.num_heads_kv * (shape.head_dim + shape.head_dim_v);
  std::vector<double> arrives;
  arrives.reserve(extents.work_tile.size());
  bool any = false;
  for (const size_t i : extents.work_tile) {
    // AwaitedKeys::turn: the place of the tile's last key in the order of arrival.
    const int turn = awaited_keys.turn(tiles.work_tiles[i].row_begin, tiles.work_tiles[i].row_end);
    const double ready_s = bytes / gpu.link_bytes_per_s * turn / awaited_keys.num_turns();
    arrives.push_back(std::max(0.0, ready_s - before_s) / step_s);
    any = any || arrives.back() > 0;
  }
  if (!any) arrives.clear();
  return arrives;
}

WorkTile make_work_tile(const MaskTile& tile, const std::vector<uint64_t>& covered_keys) {
  WorkTile work_tile;
  work_tile.row_begin = tile.row_begin;
  work_tile.row_end = tile.row_end;
  work_tile.run_begin = tile.run_begin;
  work_tile.run_end = tile.run_end;
  for (int word = 0; word < 2; ++word) {
    const uint64_t bits = bits_at(covered_keys, tile.row_begin + word * 64);
    work_tile.covered[word * 2] = static_cast<uint32_t>(bits);
    work_tile.covered[word * 2 + 1] = static_cast<uint32_t>(bits >> 32);
    if (bits != ~uint64_t{0}) work_tile.flags = kWorkTileZeroRows;
  }
  return work_tile;
}

/// For every key tile, by index into of_keys: the fields that its work tiles share.
std::vector<WorkTile> work_tiles_of_tiles(const TileList& tiles, const Extents& extents,
                                          const std::vector<uint64_t>& covered_keys) {
  std::vector<WorkTile> work_tiles;
  work_tiles.reserve(extents.work_tile.size());
  for (const size_t tile : extents.work_tile)
    work_tiles.push_back(make_work_tile(tiles.work_tiles[tile], covered_keys));
  return work_tiles;
}

/// Appends the work tiles of all KV heads, or of one of several head groups, in scheduled order. Returns how many of
/// them are head splits. `before`: null, or gets WorkList::scheduled_before.
int32_t emit_work_tiles(std::vector<WorkTile>& work_tiles, const std::vector<WorkTile>& of_tiles,
                        const Extents& extents, const AttnShape& shape, const TileSchedule& how,
                        const TileScheduleOptions& options, std::vector<double>* before) {
  const int group = shape.num_heads_q / shape.num_heads_kv;
  const auto num_heads = static_cast<size_t>(shape.num_heads_kv);
  const int first_head = options.group * shape.num_heads_kv, end_head = first_head + shape.num_heads_kv;
  std::vector<int32_t> accum_tile_of(of_tiles.size() * num_heads);
  int32_t num_accum_tiles = 0;
  double scheduled = 0;  // query tiles of a K/V head
  work_tiles.reserve(most_work_tiles(extents, shape.num_heads_kv, how));
  for_each_tile_span(
      extents, shape.num_heads_kv * options.num_groups, how, [&](size_t i, int first, int last, int head_splits) {
        const auto count = static_cast<int32_t>(extents.of_keys[i].count);
        const bool is_empty = count == 0;  // which is one piece
        const double scheduled_before = scheduled;
        scheduled += static_cast<double>(count) * (last - first) / head_splits;
        first = std::max(first, first_head * head_splits);
        last = std::min(last, end_head * head_splits);
        if (first >= last) return;
        int head = first / head_splits - first_head, head_split = first % head_splits;
        int begin = first_head_of_split(group, head_splits, head_split);
        for (int number = first; number < last; ++number) {
          const int end =
              head_split + 1 == head_splits ? group : first_head_of_split(group, head_splits, head_split + 1);
          if (!is_empty || head_split == 0) {
            WorkTile& work_tile = work_tiles.emplace_back(of_tiles[i]);
            work_tile.kv_head = head;
            work_tile.head_begin = head * group + begin;
            work_tile.head_end = head * group + (is_empty ? group : end);
            work_tile.num_steps = count * (end - begin);
            work_tile.num_head_splits = is_empty ? 1 : head_splits;
            work_tile.head_split = head_split;
            int32_t& accum_tile = accum_tile_of[i * num_heads + static_cast<size_t>(head)];
            if (work_tile.num_head_splits > 1 && head_split == 0) accum_tile = num_accum_tiles++;
            work_tile.accum_tile = accum_tile;
            if (before != nullptr) before->push_back(scheduled_before);
          }
          begin = end;
          if (++head_split == head_splits) ++head, head_split = begin = 0;
        }
      });
  if (before != nullptr && scheduled > 0) {
    for (double& share : *before) share /= scheduled;
  }
  return num_accum_tiles;
}

/// Fills the query tiles that each run visits. The list is of the transposed mask: what it calls keys are queries.
void fill_run_tiles(WorkList& work) {
  if (work.q_tiles.empty()) return;
  // If tiles begin with documents, a granule of 64 rows may hold several. The search starts at the first tile of the
  // row's granule and takes a step or two.
  constexpr int32_t kGranule = 64;
  std::vector<int32_t> of_granule;
  of_granule.reserve(static_cast<size_t>(work.q_tiles.back().row_end / kGranule) + 1);
  for (int32_t tile = 0; tile < static_cast<int32_t>(work.q_tiles.size()); ++tile) {
    const int32_t end = work.q_tiles[static_cast<size_t>(tile)].row_end;
    while (static_cast<int32_t>(of_granule.size()) * kGranule < end) of_granule.push_back(tile);
  }
  const auto tile_of = [&](int32_t row) {
    int32_t tile = of_granule[static_cast<size_t>(row / kGranule)];
    while (work.q_tiles[static_cast<size_t>(tile)].row_end <= row) ++tile;
    return tile;
  };
  work.run_tiles.reserve(work.runs.size());
  for (const TileRange& run : work.runs)
    work.run_tiles.push_back({tile_of(run.k_begin), tile_of(run.k_end - 1) + 1, 0});
}

}  // namespace

WorkList make_work_list(const TileList& tiles, std::span<const AttnSlice> slices, const AttnShape& shape,
                        const GpuModel& gpu, const AwaitedKeys& awaited_keys, const TileScheduleOptions& options) {
  WorkList work;
  work.runs = tiles.runs;
  work.intervals = tiles.intervals;
  // `tiles` is the list of the transposed mask, so its key tiles are query tiles.
  for (size_t i = 0; i + 1 < tiles.key_tiles.size(); ++i) {
    work.q_tiles.push_back({tiles.key_tiles[i], tiles.key_tiles[i + 1]});
  }
  fill_run_tiles(work);
  const Coverage covered = coverage(slices, shape);
  const bool all_covered =
      std::all_of(covered.queries.begin(), covered.queries.end(), [](uint64_t word) { return word == ~uint64_t{0}; });
  if (!all_covered) {
    for (const QueryTile& tile : work.q_tiles) work.covered_queries.push_back(bits_at(covered.queries, tile.row_begin));
  }

  Extents extents = measure_extents(tiles, work.run_tiles);
  if (extents.work_tile.empty()) return work;
  const double spread = length_spread(tiles, work.run_tiles, static_cast<int64_t>(work.q_tiles.size()));
  const Direction direction = choose_direction(extents);
  const Visits visits = visits_of(extents);
  work.zeroed_sums = zeroes_sums(direction.same_begin, is_scattered(visits.tiles, visits.between), visits.tiles,
                                 static_cast<int64_t>(work.q_tiles.size()));
  const std::vector<double> arrives =
      ready_in_steps(tiles, extents, shape, gpu, awaited_keys, seconds_before(shape, gpu, work.zeroed_sums));
  const std::vector<WorkTile> of_tiles = work_tiles_of_tiles(tiles, extents, covered.keys);
  AttnShape all_groups = shape;
  all_groups.num_heads_q *= options.num_groups;
  all_groups.num_heads_kv *= options.num_groups;
  const auto choose = [&](Extents& in_order, bool deterministic) {
    if (options.by_rule) return heuristic_tile_schedule(in_order, shape, gpu, deterministic);
    const TileSchedule how = options.given
                                 ? *options.given
                                 : choose_tile_schedule(in_order, spread, all_groups, gpu, arrives, deterministic);
    // Guided scheduling sorts sections by pieces of different lengths. So heads see tiles in different orders, but
    // add_turns counts those of one head.
    TANGRAM_ASSERT(!deterministic || how.guided_divisor == 0);
    return how;
  };
  TANGRAM_ASSERT(options.num_groups == 1 || (options.calls == BackwardCalls::kDefault && awaited_keys.empty()));
  const auto add_work_tiles = [&](std::vector<WorkTile>& work_tiles, const Extents& in_order, const TileSchedule& how) {
    std::vector<double>* const before = options.num_groups > 1 ? &work.scheduled_before : nullptr;
    work.num_accum_tiles =
        std::max(work.num_accum_tiles, emit_work_tiles(work_tiles, of_tiles, in_order, shape, how, options, before));
  };
  work.walk = work.deterministic_walk = {direction.descending, direction.same_begin};
  // Only awaited keys change the order.
  Extents late_order, late_deterministic_order;
  Extents& in_order = arrives.empty() ? extents : late_order = extents;
  const TileSchedule how = choose(in_order, options.calls == BackwardCalls::kDeterministic);
  add_work_tiles(work.work_tiles, in_order, how);
  if (options.calls != BackwardCalls::kDeterministic) work.walk.heads_innermost = how.heads_innermost;
  if (options.calls == BackwardCalls::kBoth) {
    Extents& deterministic_order = arrives.empty() ? extents : late_deterministic_order = extents;
    TileSchedule deterministic = choose(deterministic_order, true);
    // It is a property of the walk, not of work tiles, so it must not make the schedules differ.
    deterministic.heads_innermost = how.heads_innermost;
    if (deterministic != how || deterministic_order.order != in_order.order) {
      add_work_tiles(work.deterministic_work_tiles, deterministic_order, deterministic);
    }
  }
  if (options.calls != BackwardCalls::kDefault) add_turns(work);
  return work;
}

}  // namespace tangram::schedule
