// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A sweep over query rows: tiles in order, beside them the slices that are open at those rows. Inside a tile slices are
// packed into runs first-fit by their first key; docs/design/forward_sm90.md says why runs have no gaps. With a new
// mask at every step this is part of a step. So nothing is allocated per tile, and one slice is one run at once.

#include "schedule/tile_list.hpp"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "core/require.hpp"
#include "schedule/tile_begins.hpp"

namespace tangram::schedule {
namespace {

constexpr int64_t kMaxRows = (int64_t{1} << 31) - (int64_t{1} << 16);

constexpr int kNone = -1;

/// A slice's part in a tile.
struct Piece {
  AttnSlice slice;
  int next = kNone;  // of the same run
};

/// A run under construction: pieces with disjoint rows whose keys together leave no gap.
struct OpenRun {
  Range keys;
  Range rows;  // the hull of those of its pieces
  int first = kNone;
  int last = kNone;
};

/// The keys that all rows of `rows` see in `piece` (which is canonical, so that each of its own rows sees some).
Range common_keys(const AttnSlice& head_split, const Range& rows) {
  if (!head_split.q_range.contains(rows)) return {0, 0};
  return {head_split.keys_of(rows.end - 1).begin, head_split.keys_of(rows.begin).end};
}

class Builder {
 public:
  Builder(std::span<const AttnSlice> slices, int64_t seqlen_q, int64_t seqlen_k, TileShape shape) {
    list_.shape = shape;
    list_.seqlen_q = seqlen_q;
    list_.seqlen_k = seqlen_k;
    const auto block_n = static_cast<uint32_t>(shape.block_n);
    if (std::has_single_bit(block_n)) shift_ = std::countr_zero(block_n);
    slices_.reserve(slices.size());
    for (const AttnSlice& slice : slices) {
      const AttnSlice trimmed = canonical(slice);
      if (!trimmed.q_range.empty()) slices_.push_back(trimmed);
    }
    // In the order given: slices that come transposed out of a sorted list are sorted the other way.
    if (shape.follows_mask) {
      keys_first_.reserve(slices_.size());
      for (const AttnSlice& slice : slices_) keys_first_.push_back(transposed(slice));
      sort(keys_first_);
    }
    sort(slices_);
  }

  TileList build() {
    const TileShape& shape = list_.shape;
    std::vector<int32_t> begins = shape.anew_every > 0
                                      ? tile_begins_anew(list_.seqlen_q, shape.block_m, shape.anew_every)
                                      : tile_begins(slices_, list_.seqlen_q, shape.block_m, shape.follows_mask);
    begins.push_back(static_cast<int32_t>(list_.seqlen_q));
    list_.work_tiles.reserve(begins.size() - 1);
    list_.runs.reserve(begins.size() - 1);
    costs_.reserve(begins.size() - 1);
    size_t next = 0;
    std::vector<AttnSlice> open;
    for (size_t tile = 0; tile + 1 < begins.size(); ++tile) {
      const Range rows{begins[tile], begins[tile + 1]};
      while (next < slices_.size() && slices_[next].q_range.begin < rows.end) open.push_back(slices_[next++]);
      if (open.size() == 1 && open[0].q_range.contains(rows)) {
        const int64_t next_slice = next < slices_.size() ? slices_[next].q_range.begin : list_.seqlen_q;
        tile = add_work_tiles_of(open[0], begins, tile, std::min(open[0].q_range.end, next_slice)) - 1;
        if (open[0].q_range.end <= begins[tile + 1]) open.clear();
        continue;
      }
      const int64_t next_slice = next < slices_.size() ? slices_[next].q_range.begin : list_.seqlen_q;
      const int64_t end = end_of_blocks(open, {rows.begin, next_slice});
      if (begins[tile + 1] <= end && open.size() > 1) {
        tile = add_work_tiles_of_blocks(open, begins, tile, end) - 1;
        std::erase_if(open, [&](const AttnSlice& slice) { return slice.q_range.end <= begins[tile + 1]; });
        continue;
      }
      add_work_tile(rows, open);
      std::erase_if(open, [&](const AttnSlice& slice) { return slice.q_range.end <= rows.end; });
    }
    sort_work_tiles();
    if (list_.shape.follows_mask) add_key_tiles();
    return std::move(list_);
  }

 private:
  static void sort(std::vector<AttnSlice>& slices) {
    if (!std::is_sorted(slices.begin(), slices.end())) std::sort(slices.begin(), slices.end());
  }

  void add_key_tiles() {
    list_.key_tiles = tile_begins(keys_first_, list_.seqlen_k, list_.shape.block_n, true);
    list_.key_tiles.push_back(static_cast<int32_t>(list_.seqlen_k));
  }

  void begin_work_tile(const Range& rows) {
    MaskTile& work_tile = list_.work_tiles.emplace_back();
    work_tile.row_begin = static_cast<int32_t>(rows.begin);
    work_tile.row_end = static_cast<int32_t>(rows.end);
    work_tile.run_begin = static_cast<int32_t>(list_.runs.size());
    cost_ = 0;
  }
  void end_work_tile() {
    list_.work_tiles.back().run_end = static_cast<int32_t>(list_.runs.size());
    costs_.push_back(cost_);
    largest_cost_ = std::max(largest_cost_, cost_);
  }

  /// Adds tiles of rows of one slice, which most tiles are. Runs equal to those of its pieces, for all tiles from
  /// `tile` on that end at `end` or before: every row of a canonical slice sees keys. Returns the tile behind them.
  size_t add_work_tiles_of(const AttnSlice& slice, const std::vector<int32_t>& begins, size_t tile, int64_t end) {
    auto run_begin = static_cast<int32_t>(list_.runs.size());
    do {
      const int64_t row_begin = begins[tile], row_end = begins[tile + 1];
      const int64_t k_begin = std::max(slice.k_range.begin, row_begin + slice.min_diag);
      const int64_t k_end = std::min(slice.k_range.end, row_end + slice.max_diag);
      const int64_t full_begin = std::max(k_begin, row_end - 1 + slice.min_diag);
      const int64_t full_end = std::min(k_end, row_begin + 1 + slice.max_diag);
      const bool has_full = full_begin < full_end;
      // Bounds as in fill_closed_form.
      const bool min_binds = slice.min_diag > k_begin - (row_end - 1),
                 max_binds = slice.max_diag < k_end - 1 - row_begin;
      TileRange run;
      run.k_begin = run.slice_k_begin = static_cast<int32_t>(k_begin);
      run.k_end = run.slice_k_end = static_cast<int32_t>(k_end);
      run.full_begin = has_full ? static_cast<int32_t>(full_begin) : 0;
      run.full_end = has_full ? static_cast<int32_t>(full_end) : 0;
      run.row_begin = static_cast<int32_t>(row_begin);
      run.row_end = static_cast<int32_t>(row_end);
      run.min_diag = static_cast<int32_t>(min_binds ? slice.min_diag : k_begin - row_end);
      run.max_diag = static_cast<int32_t>(max_binds ? slice.max_diag : k_end - row_begin);
      list_.runs.push_back(run);
      list_.work_tiles.push_back({run.row_begin, run.row_end, run_begin, run_begin + 1});
      ++run_begin;
      const int64_t cost = steps_of(run);
      costs_.push_back(cost);
      largest_cost_ = std::max(largest_cost_, cost);
      ++tile;
    } while (tile + 1 < begins.size() && begins[tile + 1] <= end);
    return tile;
  }

  /// The row up to which all of `rows` see the same blocks, those of `open`; 0 where a slice is none, or begins later.
  static int64_t end_of_blocks(const std::vector<AttnSlice>& open, const Range& rows) {
    int64_t end = rows.end;
    for (const AttnSlice& slice : open) {
      const bool is_block = slice.min_diag == kOpenMinDiag && slice.max_diag == kOpenMaxDiag;
      if (!is_block || slice.q_range.begin > rows.begin) return 0;
      end = std::min(end, slice.q_range.end);
    }
    return end;
  }

  /// Work tiles of all tiles from `tile` on that end at `end` or before; all of their rows see the blocks `open`. Each
  /// block is a run of its own, as pack_pieces makes runs of pieces that share rows. Returns the tile behind them.
  size_t add_work_tiles_of_blocks(const std::vector<AttnSlice>& open, const std::vector<int32_t>& begins, size_t tile,
                                  int64_t end) {
    blocks_.clear();
    for (const AttnSlice& slice : open) blocks_.push_back(slice.k_range);
    if (!std::is_sorted(blocks_.begin(), blocks_.end())) std::sort(blocks_.begin(), blocks_.end());
    do {
      const Range rows{begins[tile], begins[tile + 1]};
      begin_work_tile(rows);
      for (const Range& keys : blocks_) {
        TileRange& run = add_run(keys);
        run.slice_k_begin = run.full_begin = run.k_begin;
        run.slice_k_end = run.full_end = run.k_end;
        run.row_begin = static_cast<int32_t>(rows.begin);
        run.row_end = static_cast<int32_t>(rows.end);
        run.min_diag = static_cast<int32_t>(keys.begin - rows.end);
        run.max_diag = static_cast<int32_t>(keys.end - rows.begin);
      }
      end_work_tile();
      ++tile;
    } while (tile + 1 < begins.size() && begins[tile + 1] <= end);
    return tile;
  }

  int32_t steps_of(const TileRange& run) const {
    const int32_t keys = run.k_end - run.k_begin + list_.shape.block_n - 1;
    return shift_ >= 0 ? keys >> shift_ : keys / list_.shape.block_n;  // of 32 bits: half the time
  }

  void add_work_tile(const Range& rows, const std::vector<AttnSlice>& open) {
    begin_work_tile(rows);
    cut_pieces(rows, open);
    if (pieces_.size() == 1) {
      fill_closed_form(add_run(pieces_[0].slice.k_range), pieces_[0].slice, rows);
    } else if (pieces_.size() > 1) {
      pack_pieces();
      for (const OpenRun& run : open_runs_) add_run(run, rows);
    }
    end_work_tile();
  }

  void cut_pieces(const Range& rows, const std::vector<AttnSlice>& open) {
    pieces_.clear();
    for (const AttnSlice& slice : open) {
      const AttnSlice head_split = rows.contains(slice.q_range) ? slice : cut_rows(slice, rows);
      if (!head_split.q_range.empty()) pieces_.push_back({head_split});
    }
  }

  /// First fit by the first key. Runs that end before a piece begins take no later one either.
  void pack_pieces() {
    const auto before = [](const Piece& a, const Piece& b) {
      const auto order = std::pair(a.slice.k_range, a.slice.q_range) <=> std::pair(b.slice.k_range, b.slice.q_range);
      return order != 0 ? order < 0 : a.slice < b.slice;
    };
    if (!std::is_sorted(pieces_.begin(), pieces_.end(), before)) std::sort(pieces_.begin(), pieces_.end(), before);
    open_runs_.clear();
    size_t first_alive = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const AttnSlice& head_split = pieces_[i].slice;
      const auto ends_before = [&](const OpenRun& run) { return run.keys.end < head_split.k_range.begin; };
      while (first_alive < open_runs_.size() && ends_before(open_runs_[first_alive])) ++first_alive;
      size_t at = first_alive;
      while (at < open_runs_.size() && (ends_before(open_runs_[at]) || shares_rows(open_runs_[at], head_split.q_range)))
        ++at;
      const int index = static_cast<int>(i);
      if (at == open_runs_.size()) {
        open_runs_.push_back({head_split.k_range, head_split.q_range, index, index});
        continue;
      }
      OpenRun& run = open_runs_[at];
      run.keys = hull(run.keys, head_split.k_range);
      run.rows = hull(run.rows, head_split.q_range);
      pieces_[static_cast<size_t>(run.last)].next = index;
      run.last = index;
    }
  }

  bool shares_rows(const OpenRun& run, const Range& rows) const {
    if (intersect(run.rows, rows).empty()) return false;
    for (int i = run.first; i != kNone; i = pieces_[static_cast<size_t>(i)].next) {
      if (!intersect(pieces_[static_cast<size_t>(i)].slice.q_range, rows).empty()) return true;
    }
    return false;
  }

  TileRange& add_run(const Range& keys) {
    TileRange& run = list_.runs.emplace_back();
    run.k_begin = static_cast<int32_t>(keys.begin);
    run.k_end = static_cast<int32_t>(keys.end);
    cost_ += steps_of(run);
    return run;
  }

  void add_run(const OpenRun& open, const Range& rows) {
    TileRange& run = add_run(open.keys);
    if (open.first == open.last) {
      fill_closed_form(run, pieces_[static_cast<size_t>(open.first)].slice, rows);
    } else {
      fill_intervals(run, open, rows);
    }
  }

  static void fill_closed_form(TileRange& run, const AttnSlice& head_split, const Range& rows) {
    const Range common = common_keys(head_split, rows);
    if (!common.empty()) {
      run.full_begin = static_cast<int32_t>(common.begin);
      run.full_end = static_cast<int32_t>(common.end);
    }
    run.row_begin = static_cast<int32_t>(head_split.q_range.begin);
    run.row_end = static_cast<int32_t>(head_split.q_range.end);
    run.slice_k_begin = run.k_begin;
    run.slice_k_end = run.k_end;
    // Bounds that do not bind on these rows get the nearest value that does not, far from overflow.
    run.min_diag =
        static_cast<int32_t>(std::max(head_split.min_diag, head_split.k_range.begin - head_split.q_range.end));
    run.max_diag =
        static_cast<int32_t>(std::min(head_split.max_diag, head_split.k_range.end - head_split.q_range.begin));
  }

  void fill_intervals(TileRange& run, const OpenRun& open, const Range& rows) {
    run.row_begin = static_cast<int32_t>(rows.begin);
    run.row_end = static_cast<int32_t>(rows.end);
    run.interval_begin = static_cast<int32_t>(list_.intervals.size());
    list_.intervals.resize(list_.intervals.size() + static_cast<size_t>(rows.size()));
    RowInterval* intervals = list_.intervals.data() + run.interval_begin;
    int64_t num_rows = 0;
    Range common = open.keys;
    for (int p = open.first; p != kNone; p = pieces_[static_cast<size_t>(p)].next) {
      const AttnSlice& head_split = pieces_[static_cast<size_t>(p)].slice;
      for (int64_t i = head_split.q_range.begin; i < head_split.q_range.end; ++i) {
        const Range keys = head_split.keys_of(i);
        intervals[i - rows.begin] = {static_cast<int32_t>(keys.begin), static_cast<int32_t>(keys.end)};
      }
      num_rows += head_split.q_range.size();
      common = intersect(common, common_keys(head_split, head_split.q_range));
    }
    if (num_rows == rows.size() && !common.empty()) {
      run.full_begin = static_cast<int32_t>(common.begin);
      run.full_end = static_cast<int32_t>(common.end);
    }
  }

  /// Longest first by visited tiles, ties in row order: a counting sort, since costs are small numbers.
  void sort_work_tiles() {
    std::vector<int32_t> first(static_cast<size_t>(largest_cost_) + 2);
    for (const int64_t cost : costs_) ++first[static_cast<size_t>(largest_cost_ - cost) + 1];
    for (size_t c = 1; c < first.size(); ++c) first[c] += first[c - 1];
    std::vector<MaskTile> sorted(list_.work_tiles.size());
    for (size_t i = 0; i < costs_.size(); ++i)
      sorted[static_cast<size_t>(first[static_cast<size_t>(largest_cost_ - costs_[i])]++)] = list_.work_tiles[i];
    list_.work_tiles = std::move(sorted);
  }

  TileList list_;
  std::vector<AttnSlice> slices_;
  std::vector<AttnSlice> keys_first_;  // transposed, of shapes that follow the mask
  int shift_ = -1;                     // of block_n, if that is a power of two
  std::vector<int64_t> costs_;         // of work tiles: steps over key tiles
  int64_t cost_ = 0;                   // of the work tile that is being made
  int64_t largest_cost_ = 0;
  std::vector<Range> blocks_;
  std::vector<Piece> pieces_;  // in the tile that is being cut
  std::vector<OpenRun> open_runs_;
};

}  // namespace

TileList build_tile_list(std::span<const AttnSlice> slices, int64_t seqlen_q, int64_t seqlen_k, TileShape shape) {
  require(shape.block_m > 0 && shape.block_n > 0,
          "build_tile_list: block_m and block_n must be positive (got block_m={}, block_n={})", shape.block_m,
          shape.block_n);
  require(shape.anew_every == 0 || (shape.anew_every > 0 && !shape.follows_mask),
          "build_tile_list: anew_every must be positive, or 0, and 0 where tiles follow the mask (got anew_every={}, "
          "follows_mask={})",
          shape.anew_every, shape.follows_mask);
  require(seqlen_q >= 0 && seqlen_k >= 0 && seqlen_q <= kMaxRows && seqlen_k <= kMaxRows,
          "build_tile_list: sequences must have 0 to {} rows (got seqlen_q={}, seqlen_k={})", kMaxRows, seqlen_q,
          seqlen_k);
  return Builder(slices, seqlen_q, seqlen_k, shape).build();
}

AttnSlice transposed(const AttnSlice& slice) {
  return {slice.k_range, slice.q_range, -slice.max_diag, -slice.min_diag};
}

TileList transposed_tile_list(std::span<const AttnSlice> slices, int64_t seqlen_q, int64_t seqlen_k, TileShape shape) {
  std::vector<AttnSlice> keys_first;
  keys_first.reserve(slices.size());
  for (const AttnSlice& slice : slices) keys_first.push_back(transposed(slice));
  return build_tile_list(keys_first, seqlen_k, seqlen_q, shape);
}

}  // namespace tangram::schedule
