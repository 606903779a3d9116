// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The steps of HybridCP: which rows of which document are where in each turn of the rings.
#include <algorithm>
#include <map>

#include "plan/grid/documents.hpp"
#include "plan/grid/grid.hpp"
#include "plan/runs.hpp"

namespace tangram {

namespace {

// Rows of a document that one rank owns.
struct Piece {
  int owner = 0;
  Range global;
  int64_t row = 0;  // in the owner's shard
};

using Pieces = std::vector<Piece>;

Pieces pieces_of(const std::vector<Range>& rows, const std::vector<OwnedRun>& runs) {
  Pieces pieces;
  for (const Range& range : rows) {
    auto run = std::upper_bound(runs.begin(), runs.end(), range.begin,
                                [](int64_t row, const OwnedRun& r) { return row < r.global.end; });
    for (; run != runs.end() && run->global.begin < range.end; ++run) {
      const Range global = intersect(run->global, range);
      pieces.push_back({run->owner, global, run->row + global.begin - run->global.begin});
    }
  }
  return pieces;
}

// A document as it was dealt.
struct Dealt {
  size_t level = 0;
  int first_rank = 0;  // of its sub-group
  std::map<int, Pieces> queries;
  std::map<int, Pieces> keys;
};

std::map<int, Pieces> by_owner(const Pieces& pieces) {
  std::map<int, Pieces> result;
  for (const Piece& piece : pieces) result[piece.owner].push_back(piece);
  return result;
}

// Rows of one shard that travel together, one range after the other.
struct Part {
  std::vector<Range> ranges;    // of the shard, sorted and joined
  std::vector<int64_t> starts;  // rows before each
  int64_t num_rows = 0;

  void finish();
  int64_t row_of(int64_t shard_row) const {
    const auto range = std::upper_bound(ranges.begin(), ranges.end(), shard_row,
                                        [](int64_t row, const Range& next) { return row < next.end; });
    return starts[static_cast<size_t>(range - ranges.begin())] + shard_row - range->begin;
  }
};

void Part::finish() {
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && joined.back().end == range.begin) {
      joined.back().end = range.end;
    } else {
      joined.push_back(range);
    }
  }
  ranges = std::move(joined);
  for (const Range& range : ranges) {
    starts.push_back(num_rows);
    num_rows += range.size();
  }
}

class SubRings {
 public:
  explicit SubRings(Plan& plan)
      : plan_(plan),
        sizes_(sub_group_sizes(plan.cp_size())),
        documents_(find_documents(plan.mask, 1)),
        parts_(sizes_.size(), std::vector<Part>(static_cast<size_t>(plan.cp_size()))) {
    place_documents();
    count_levels();
    num_steps_ = plan.grid.levels.empty() ? 1 : plan.grid.levels.back().ranks;
  }

  std::vector<GridStep> steps_of(int rank) const;
  void add_slices(std::vector<std::vector<GridStep>>& steps) const;

 private:
  bool turns(size_t level, int step) const { return step < sizes_[level]; }
  int first_of(size_t level, int rank) const { return rank / sizes_[level] * sizes_[level]; }
  int neighbour(size_t level, int rank, int distance) const {
    const int size = sizes_[level], first = first_of(level, rank);
    return first + ((rank - first + distance) % size + size) % size;
  }
  const Part& part(size_t level, int owner) const { return parts_[level][static_cast<size_t>(owner)]; }
  // Rows of the buffer of `rank` in `step` before those of `level`; all of them for the level after the last.
  int64_t rows_before(size_t level, int rank, int step) const;
  Exchange first_cast(size_t level, int rank) const;
  Exchange later_cast(int rank, int step) const;
  void send_home(int rank, int step, SubRingStep& result) const;
  void place_documents();
  void count_levels();
  void add_document(std::vector<std::vector<GridStep>>& steps, size_t document) const;

  Plan& plan_;
  std::vector<int> sizes_;
  std::vector<MaskDocument> documents_;
  std::vector<Dealt> dealt_;
  std::vector<std::vector<Part>> parts_;  // by level and owner; empty at level 0
  int num_steps_ = 1;
};

void SubRings::place_documents() {
  const std::vector<OwnedRun> q_runs = owned_runs(plan_.q_dispatch), k_runs = owned_runs(plan_.k_dispatch);
  for (const MaskDocument& document : documents_) {
    const Pieces queries = pieces_of(document.q_rows, q_runs), keys = pieces_of(document.k_rows, k_runs);
    int lowest = plan_.cp_size(), highest = 0;
    for (const Pieces* pieces : {&queries, &keys}) {
      for (const Piece& piece : *pieces) {
        lowest = std::min(lowest, piece.owner);
        highest = std::max(highest, piece.owner);
      }
    }
    Dealt dealt;
    while (lowest / sizes_[dealt.level] != highest / sizes_[dealt.level]) ++dealt.level;
    dealt.first_rank = first_of(dealt.level, lowest);
    dealt.queries = by_owner(queries);
    dealt.keys = by_owner(keys);
    if (dealt.level > 0) {
      for (const Piece& piece : keys) {
        parts_[dealt.level][static_cast<size_t>(piece.owner)].ranges.push_back(
            {piece.row, piece.row + piece.global.size()});
      }
    }
    dealt_.push_back(std::move(dealt));
  }
  for (std::vector<Part>& owners : parts_) {
    for (Part& owned : owners) owned.finish();
  }
}

void SubRings::count_levels() {
  std::vector<SubGroupLevel> levels(sizes_.size());
  for (size_t level = 0; level < sizes_.size(); ++level) levels[level].ranks = sizes_[level];
  for (size_t d = 0; d < documents_.size(); ++d) {
    SubGroupLevel& level = levels[dealt_[d].level];
    ++level.num_documents;
    level.q_rows += documents_[d].q_size();
    level.k_rows += documents_[d].k_size();
  }
  for (const SubGroupLevel& level : levels) {
    if (level.num_documents > 0) plan_.grid.levels.push_back(level);
  }
}

int64_t SubRings::rows_before(size_t level, int rank, int step) const {
  int64_t rows = 0;
  for (size_t before = 1; before < level; ++before) {
    if (turns(before, step)) rows += part(before, neighbour(before, rank, -step)).num_rows;
  }
  return rows;
}

Exchange SubRings::first_cast(size_t level, int rank) const {
  Exchange exchange;
  const int target = neighbour(level, rank, 1), source = neighbour(level, rank, -1);
  int64_t row = rows_before(level, target, 1);
  for (const Range& rows : part(level, rank).ranges) {
    exchange.sends.push_back({target, rows, row});
    row += rows.size();
  }
  row = rows_before(level, rank, 1);
  for (const Range& rows : part(level, source).ranges) {
    exchange.recvs.push_back({source, {row, row + rows.size()}, rows.begin});
    row += rows.size();
  }
  return exchange;
}

Exchange SubRings::later_cast(int rank, int step) const {
  Exchange exchange;
  for (size_t level = 1; level < sizes_.size(); ++level) {
    if (!turns(level, step)) continue;
    const int target = neighbour(level, rank, 1), source = neighbour(level, rank, -1);
    const int64_t sent = part(level, neighbour(level, rank, 1 - step)).num_rows;
    const int64_t from = rows_before(level, rank, step - 1);
    if (sent > 0) exchange.sends.push_back({target, {from, from + sent}, rows_before(level, target, step)});
    const int64_t come = part(level, neighbour(level, rank, -step)).num_rows;
    const int64_t to = rows_before(level, rank, step);
    if (come > 0) exchange.recvs.push_back({source, {to, to + come}, rows_before(level, source, step - 1)});
  }
  std::sort(exchange.sends.begin(), exchange.sends.end());
  std::sort(exchange.recvs.begin(), exchange.recvs.end());
  return exchange;
}

// In its last step a ring's rows are one place short of a whole turn: home is the neighbour.
void SubRings::send_home(int rank, int step, SubRingStep& result) const {
  for (size_t level = 1; level < sizes_.size(); ++level) {
    if (step != sizes_[level] - 1) continue;
    const int owner = neighbour(level, rank, 1), holder = neighbour(level, rank, -1);
    const int64_t sent = part(level, owner).num_rows, from = rows_before(level, rank, step);
    if (sent > 0) result.home.sends.push_back({owner, {from, from + sent}, 0});
    const int64_t own = part(level, rank).num_rows;
    if (own > 0) result.home.recvs.push_back({holder, {0, own}, rows_before(level, holder, step)});
    result.home_rows = part(level, rank).ranges;
  }
}

std::vector<GridStep> SubRings::steps_of(int rank) const {
  std::vector<GridStep> steps(static_cast<size_t>(num_steps_));
  for (int s = 0; s < num_steps_; ++s) {
    GridStep& step = steps[static_cast<size_t>(s)];
    step.block = step.source = step.target = step.grad_source = step.grad_target = rank;
    step.posted = std::max(0, s - 1);
    step.sub_rings.rows = s == 0 ? plan_.k_dispatch.rows_per_rank() : rows_before(sizes_.size(), rank, s);
    if (s == 1) {
      for (const SubGroupLevel& shared : plan_.grid.levels) {
        const size_t level =
            static_cast<size_t>(std::find(sizes_.begin(), sizes_.end(), shared.ranks) - sizes_.begin());
        if (level > 0) step.sub_rings.casts.push_back(first_cast(level, rank));
      }
    }
    if (s > 1) step.sub_rings.casts.push_back(later_cast(rank, s));
    if (s > 0) send_home(rank, s, step.sub_rings);
  }
  return steps;
}

void SubRings::add_document(std::vector<std::vector<GridStep>>& steps, size_t document) const {
  const Dealt& dealt = dealt_[document];
  for (const auto& [rank, queries] : dealt.queries) {
    for (const auto& [owner, keys] : dealt.keys) {
      const int step = ((rank - owner) % sizes_[dealt.level] + sizes_[dealt.level]) % sizes_[dealt.level];
      const int64_t first = step == 0 ? 0 : rows_before(dealt.level, rank, step);
      GridStep& target = steps[static_cast<size_t>(rank)][static_cast<size_t>(step)];
      for (const Piece& k : keys) {
        const int64_t k_row = step == 0 ? k.row : first + part(dealt.level, owner).row_of(k.row);
        for (const size_t s : documents_[document].slices) {
          const AttnSlice& slice = plan_.mask.slices()[s];
          if (intersect(slice.k_range, k.global).empty()) continue;
          const AttnSlice columns = cut_columns(slice, k.global);
          if (columns.q_range.empty()) continue;
          for (const Piece& q : queries) {
            if (intersect(columns.q_range, q.global).empty()) continue;
            const AttnSlice piece = cut_rows(columns, q.global);
            if (piece.q_range.empty()) continue;
            target.slices.push_back(shifted(piece, q.row - q.global.begin, k_row - k.global.begin));
          }
        }
      }
    }
  }
}

void SubRings::add_slices(std::vector<std::vector<GridStep>>& steps) const {
  for (size_t d = 0; d < documents_.size(); ++d) add_document(steps, d);
  for (std::vector<GridStep>& of_rank : steps) {
    for (GridStep& step : of_rank) {
      step.slices = merge_touching(std::move(step.slices));
      for (const AttnSlice& slice : step.slices) step.area += area(slice);
    }
  }
}

}  // namespace

void build_sub_rings(Plan& plan) {
  const SubRings rings(plan);
  for (int rank = 0; rank < plan.cp_size(); ++rank) plan.grid.steps.push_back(rings.steps_of(rank));
  rings.add_slices(plan.grid.steps);
}

}  // namespace tangram
