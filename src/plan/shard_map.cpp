// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/shard_map.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/require.hpp"
#include "plan/runs.hpp"

namespace tangram {

namespace {

void append(std::vector<Range>& runs, Range rows) {
  if (!runs.empty() && runs.back().end == rows.begin) {
    runs.back().end = rows.end;
  } else {
    runs.push_back(rows);
  }
}

}  // namespace

/// Collects what ranks want, rank by rank.
class ShardMap::Wishes {
 public:
  Wishes(const ShardMap& map, int rank) : runs_(map.runs_), rank_(rank), came_(map.rows_of_rank_.size()) {
    moves_.send_rows.assign(came_.size(), 0);
  }

  /// Before the wishes of `rank`, each rank once and in order.
  void begin(int rank) {
    wants_ = rank;
    std::fill(came_.begin(), came_.end(), 0);
  }

  void want(Range rows) {
    if (rows.empty()) return;
    auto run = std::upper_bound(runs_.begin(), runs_.end(), rows.begin,
                                [](int64_t row, const OwnedRun& other) { return row < other.global.end; });
    for (; !rows.empty(); ++run) {
      const Range piece{rows.begin, std::min(rows.end, run->global.end)};
      if (run->owner == rank_) append(moves_.sends, piece.shifted(run->row - run->global.begin));
      int64_t& came = came_[static_cast<size_t>(run->owner)];
      if (wants_ == rank_) pieces_.emplace_back(run->owner, Range{came, came + piece.size()});
      came += piece.size();
      rows.begin = piece.end;
    }
  }

  void end() {
    for (size_t owner = 0; owner < came_.size(); ++owner) {
      if (static_cast<int>(owner) != wants_) moves_.most_rows = std::max(moves_.most_rows, came_[owner]);
    }
    moves_.send_rows[static_cast<size_t>(wants_)] = came_[static_cast<size_t>(rank_)];
    if (wants_ == rank_) moves_.recv_rows = came_;
  }

  ShardMoves finish() {
    std::vector<int64_t> first(came_.size(), 0);  // of what comes from each rank
    for (size_t owner = 1; owner < first.size(); ++owner) first[owner] = first[owner - 1] + moves_.recv_rows[owner - 1];
    for (const auto& [owner, rows] : pieces_) append(moves_.places, rows.shifted(first[static_cast<size_t>(owner)]));
    return std::move(moves_);
  }

 private:
  const std::vector<OwnedRun>& runs_;
  int rank_;
  int wants_ = 0;
  std::vector<int64_t> came_;                  // [cp_size], so far, to the rank that wants
  std::vector<std::pair<int, Range>> pieces_;  // of this rank's wishes: owner, rows among those that come from it
  ShardMoves moves_;
};

ShardMap::ShardMap(const Dispatch& dispatch)
    : seqlen_(dispatch.seqlen()), runs_(owned_runs(dispatch)), rows_of_rank_(static_cast<size_t>(dispatch.cp_size)) {
  for (const OwnedRun& run : runs_) rows_of_rank_[static_cast<size_t>(run.owner)].push_back(run.global);
}

void ShardMap::check(const char* function, int rank, int64_t total) const {
  require(rank >= 0 && rank < cp_size(), "ShardMap::{}: rank must lie in [0, {}) (got {})", function, cp_size(), rank);
  require(total >= 0 && total <= seqlen_, "ShardMap::{}: total must lie in [0, {}] (got {})", function, seqlen_, total);
}

uint64_t ShardMap::fingerprint() const {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over words, as Mask::hash
  const auto add = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3;
    hash ^= hash >> 29;
  };
  for (const OwnedRun& run : runs_) {
    add(run.global.end);
    add(run.owner);
  }
  return hash;
}

std::vector<Range> ShardMap::rows_of_rank(int rank, int64_t total) const {
  check("rows_of_rank", rank, total);
  std::vector<Range> rows = rows_of_rank_[static_cast<size_t>(rank)];
  while (!rows.empty() && rows.back().begin >= total) rows.pop_back();
  if (!rows.empty()) rows.back().end = std::min(rows.back().end, total);
  return rows;
}

ShardMoves ShardMap::gather(int rank, int64_t total) const {
  check("gather", rank, total);
  Wishes wishes(*this, rank);
  wishes.begin(rank);
  wishes.want({0, total});
  wishes.end();
  ShardMoves moves = wishes.finish();
  // All want the same: what this rank sends itself goes to each, and each gets as much from a rank as this one does.
  const std::vector<Range> sends = moves.sends;
  for (int other = 1; other < cp_size(); ++other) moves.sends.insert(moves.sends.end(), sends.begin(), sends.end());
  moves.send_rows.assign(moves.recv_rows.size(), moves.recv_rows[static_cast<size_t>(rank)]);
  const int64_t most = *std::max_element(moves.recv_rows.begin(), moves.recv_rows.end());
  moves.most_rows = cp_size() > 1 ? most : 0;
  moves.most_table_rows = cp_size() * most + total;
  return moves;
}

ShardMoves ShardMap::roll(int rank, int64_t total, int64_t shift) const {
  check("roll", rank, total);
  const int64_t forward = total > 0 ? (shift % total + total) % total : 0;
  Wishes wishes(*this, rank);
  for (int wants = 0; wants < cp_size(); ++wants) {
    wishes.begin(wants);
    for (const Range& rows : rows_of_rank_[static_cast<size_t>(wants)]) {
      const Range real = intersect(rows, {0, total});
      wishes.want(intersect(real, {0, forward}).shifted(total - forward));  // comes around the end
      wishes.want(intersect(real, {forward, total}).shifted(-forward));
      wishes.want(intersect(rows, {total, seqlen_}));
    }
    wishes.end();
  }
  ShardMoves moves = wishes.finish();
  moves.most_table_rows = 2 * rows_per_rank();  // a permutation of the sequence
  return moves;
}

ShardLabels ShardMap::labels(int rank, int64_t total, int64_t shift, std::span<const int64_t> cu_seqlens) const {
  require(!cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() == total &&
              std::is_sorted(cu_seqlens.begin(), cu_seqlens.end()),
          "ShardMap::labels: cu_seqlens must rise from 0 to {} (got {}, {} values)", total,
          fmt::join(cu_seqlens.first(std::min<size_t>(cu_seqlens.size(), 8)), ", "), cu_seqlens.size());
  require(shift >= 0, "ShardMap::labels: shift must not be negative (got {})", shift);
  ShardLabels labels;
  int64_t shard_row = 0;
  auto document_end = cu_seqlens.begin();
  for (const Range& rows : rows_of_rank(rank, total)) {
    const Range wanted = rows.shifted(shift);
    if (wanted.begin < total) append(labels.sources, {wanted.begin, std::min(wanted.end, total)});
    const Range beyond{std::max(rows.begin, total - shift), rows.end};
    if (!beyond.empty()) append(labels.sources, beyond);
    for (int64_t begin = rows.begin; begin < rows.end;) {
      document_end = std::upper_bound(document_end, cu_seqlens.end(), begin);
      const int64_t end = std::min(*document_end, rows.end);
      const Range without{std::max(begin, *document_end - shift), end};
      if (!without.empty()) append(labels.without, without.shifted(shard_row - rows.begin));
      begin = end;
    }
    shard_row += rows.size();
  }
  return labels;
}

}  // namespace tangram
