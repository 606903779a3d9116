// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/cpu/tile_index.hpp"

#include <algorithm>

namespace tangram::cpu {

namespace {

// Bits [begin, end) of a 64-bit word, where begin and end may lie outside of it.
uint64_t bits(int64_t begin, int64_t end) {
  begin = std::max<int64_t>(begin, 0);
  end = std::min<int64_t>(end, 64);
  if (begin >= end) return 0;
  return (~uint64_t{0} >> (64 - (end - begin))) << begin;
}

// Whether every lane of `lanes` sees every step of `steps` through this one piece.
bool covers(const AttnSlice& piece, Range lanes, Range steps) {
  return piece.q_range.contains(lanes) && piece.k_range.contains(steps) &&
         steps.begin - (lanes.end - 1) >= piece.min_diag && steps.end - 1 - lanes.begin <= piece.max_diag;
}

}  // namespace

TileIndex::TileIndex(std::span<const AttnSlice> slices, int64_t num_lanes) {
  const int64_t num_tiles = (num_lanes + kTileLanes - 1) / kTileLanes;
  std::vector<std::vector<AttnSlice>> of_tile(static_cast<size_t>(num_tiles));
  for (const AttnSlice& slice : slices) {
    if (slice.q_range.empty()) continue;
    const int64_t last = (slice.q_range.end - 1) / kTileLanes;
    for (int64_t t = slice.q_range.begin / kTileLanes; t <= last; ++t) {
      const AttnSlice piece = cut_rows(slice, {t * kTileLanes, (t + 1) * kTileLanes});
      if (!piece.q_range.empty()) of_tile[static_cast<size_t>(t)].push_back(piece);
    }
  }
  for (int64_t t = 0; t < num_tiles; ++t) {
    std::vector<AttnSlice>& pieces = of_tile[static_cast<size_t>(t)];
    std::sort(pieces.begin(), pieces.end(),
              [](const AttnSlice& a, const AttnSlice& b) { return a.k_range.begin < b.k_range.begin; });
    LaneTile tile;
    tile.rows = {t * kTileLanes, std::min(num_lanes, (t + 1) * kTileLanes)};
    tile.piece_begin = static_cast<int64_t>(pieces_.size());
    tile.union_begin = static_cast<int64_t>(unions_.size());
    for (const AttnSlice& piece : pieces) {
      tile.area += area(piece);
      const bool touches =
          static_cast<int64_t>(unions_.size()) > tile.union_begin && piece.k_range.begin <= unions_.back().end;
      if (touches) {
        unions_.back().end = std::max(unions_.back().end, piece.k_range.end);
      } else {
        unions_.push_back(piece.k_range);
      }
    }
    pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
    tile.piece_end = static_cast<int64_t>(pieces_.size());
    tile.union_end = static_cast<int64_t>(unions_.size());
    tiles_.push_back(tile);
  }
  // It lives as long as its mask.
  tiles_.shrink_to_fit();
  pieces_.shrink_to_fit();
  unions_.shrink_to_fit();
}

std::span<const AttnSlice> TileIndex::pieces(const LaneTile& tile) const {
  return std::span(pieces_).subspan(static_cast<size_t>(tile.piece_begin),
                                    static_cast<size_t>(tile.piece_end - tile.piece_begin));
}

std::span<const Range> TileIndex::steps(const LaneTile& tile) const {
  return std::span(unions_).subspan(static_cast<size_t>(tile.union_begin),
                                    static_cast<size_t>(tile.union_end - tile.union_begin));
}

void TileIndex::find_seen_lanes(const LaneTile& tile, bool* seen) const {
  for (const AttnSlice& piece : pieces(tile)) {
    // Canonical: each of its rows sees something.
    std::fill(seen + (piece.q_range.begin - tile.rows.begin), seen + (piece.q_range.end - tile.rows.begin), true);
  }
}

std::vector<AttnSlice> transposed(std::span<const AttnSlice> slices) {
  std::vector<AttnSlice> result;
  result.reserve(slices.size());
  for (const AttnSlice& s : slices) result.push_back({s.k_range, s.q_range, -s.max_diag, -s.min_diag});
  return result;
}

StepWalker::StepWalker(const TileIndex& index, const LaneTile& tile, int max_steps, int64_t grid)
    : tile_(tile), pieces_(index.pieces(tile)), ranges_(index.steps(tile)), max_steps_(max_steps), grid_(grid) {
  if (!ranges_.empty()) cursor_ = ranges_[0].begin;
}

int StepWalker::collect(StepBlock& block) {
  int n = 0;
  while (n < max_steps_ && range_idx_ < ranges_.size()) {
    int64_t end = std::min(ranges_[range_idx_].end, cursor_ + max_steps_ - n);
    if (grid_ > 0) {
      if (n > 0 && cursor_ / grid_ != block.rows[0] / grid_) break;
      end = std::min(end, (cursor_ / grid_ + 1) * grid_);
    }
    for (; cursor_ < end; ++cursor_) block.rows[n++] = cursor_;
    if (cursor_ == ranges_[range_idx_].end && ++range_idx_ < ranges_.size()) cursor_ = ranges_[range_idx_].begin;
  }
  return n;
}

void StepWalker::mark(StepBlock& block) {
  const int n = block.num_steps;
  const Range hull{block.rows[0], block.rows[n - 1] + 1};
  while (first_piece_ < pieces_.size() && pieces_[first_piece_].k_range.end <= hull.begin) ++first_piece_;
  for (size_t p = first_piece_; p < pieces_.size() && pieces_[p].k_range.begin < hull.end; ++p) {
    if (covers(pieces_[p], tile_.rows, hull)) {
      block.full = true;
      return;
    }
  }
  std::fill_n(block.lanes[0], n, 0);
  std::fill_n(block.lanes[1], n, 0);
  for (size_t p = first_piece_; p < pieces_.size() && pieces_[p].k_range.begin < hull.end; ++p) {
    const AttnSlice& piece = pieces_[p];
    const int64_t* first = std::lower_bound(block.rows, block.rows + n, piece.k_range.begin);
    const int64_t* last = std::lower_bound(first, static_cast<const int64_t*>(block.rows) + n, piece.k_range.end);
    for (; first < last; ++first) {
      const Range lanes = piece.queries_of(*first).shifted(-tile_.rows.begin);
      const auto step = first - block.rows;
      block.lanes[0][step] |= bits(lanes.begin, lanes.end);
      block.lanes[1][step] |= bits(lanes.begin - 64, lanes.end - 64);
    }
  }
  const uint64_t all[2] = {bits(0, tile_.rows.size()), bits(0, tile_.rows.size() - 64)};
  block.full = true;
  for (int s = 0; s < n; ++s) block.full &= block.lanes[0][s] == all[0] && block.lanes[1][s] == all[1];
}

bool StepWalker::next(StepBlock& block) {
  block.num_steps = collect(block);
  if (block.num_steps == 0) return false;
  block.full = false;
  block.ordinal = num_blocks_++;
  mark(block);
  return true;
}

}  // namespace tangram::cpu
