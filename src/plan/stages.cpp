// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/stages.hpp"

#include <algorithm>
#include <bit>

#include "core/require.hpp"

namespace tangram {

namespace {

// A group of remote rows ends at a multiple of this many global rows if one is near: the height of a kernel tile.
constexpr int64_t kGroupAlignment = 128;

// A maximal range of consecutive K/V buffer rows that belong to one stage.
struct Stripe {
  Range rows;
  int stage = 0;
};

int stage_of(const KvSegment& segment, AttnPass pass) {
  return pass == AttnPass::kForward ? segment.stage_fwd : segment.stage_bwd;
}

int& stage_of(KvSegment& segment, AttnPass pass) {
  return pass == AttnPass::kForward ? segment.stage_fwd : segment.stage_bwd;
}

std::vector<Stripe> stripes_of(std::span<const KvSegment> segments, AttnPass pass) {
  std::vector<Stripe> stripes;
  for (const KvSegment& segment : segments) {
    const int stage = stage_of(segment, pass);
    const int64_t end = segment.row + segment.global.size();
    if (!stripes.empty() && stripes.back().stage == stage) {
      stripes.back().rows.end = end;
    } else {
      stripes.push_back({{segment.row, end}, stage});
    }
  }
  return stripes;
}

// Calls visit(stage, piece) for the parts of every slice that lie in one stripe.
template <class Visit>
void for_each_piece(std::span<const KvSegment> segments, std::span<const AttnSlice> slices, AttnPass pass,
                    const Visit& visit) {
  const std::vector<Stripe> stripes = stripes_of(segments, pass);
  for (const AttnSlice& slice : slices) {
    auto stripe = std::upper_bound(stripes.begin(), stripes.end(), slice.k_range.begin,
                                   [](int64_t row, const Stripe& s) { return row < s.rows.end; });
    if (stripe->rows.contains(slice.k_range)) {
      visit(stripe->stage, slice);
      continue;
    }
    for (; stripe != stripes.end() && stripe->rows.begin < slice.k_range.end; ++stripe) {
      visit(stripe->stage, cut_columns(slice, stripe->rows));
    }
  }
}

// Gives the segments `in_group` the stages first_stage .. first_stage + num_groups - 1 in buffer order, about equally
// many rows each. A group ends at the end of a segment if one is near the ideal place: there the slices are cut anyway
// (by a gap or by local rows) or a copy is saved.
void assign_groups(std::vector<KvSegment>& segments, const std::vector<bool>& in_group, int first_stage, int num_groups,
                   AttnPass pass) {
  int64_t total = 0;
  for (size_t i = 0; i < segments.size(); ++i) total += in_group[i] ? segments[i].global.size() : 0;
  const int64_t slack = total / (8 * num_groups);
  std::vector<KvSegment> result;
  result.reserve(segments.size() + static_cast<size_t>(num_groups));
  int64_t done = 0;
  int group = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    KvSegment rest = segments[i];
    if (!in_group[i]) {
      result.push_back(rest);
      continue;
    }
    // Each iteration but the last cuts the segment where a group ends.
    while (true) {
      stage_of(rest, pass) = first_stage + group;
      const int64_t goal = total * (group + 1) / num_groups;
      const int64_t end = done + rest.global.size();
      if (group == num_groups - 1 || end < goal - slack) break;
      ++group;
      if (end <= goal + slack) break;
      if (goal == done) continue;  // fewer rows than groups
      int64_t cut = rest.global.begin + (goal - done);
      const int64_t aligned = (cut + kGroupAlignment / 2) / kGroupAlignment * kGroupAlignment;
      if (rest.global.contains(aligned - 1) && std::abs(aligned - cut) <= slack) cut = aligned;
      KvSegment head = rest;
      head.global.end = cut;
      result.push_back(head);
      const int64_t head_rows = head.global.size();
      rest.global.begin = cut;
      rest.row += head_rows;
      rest.owner_row += head_rows;
      done += head_rows;
    }
    done += rest.global.size();
    result.push_back(rest);
  }
  segments = std::move(result);
}

// The stages of one pass of one rank, without slices; stage 0 has the local rows.
std::vector<Stage> empty_stages(int num_remote, bool keep_last) {
  std::vector<Stage> stages(static_cast<size_t>(num_remote) + 1);
  if (keep_last && num_remote > 0) stages.back().kept = true;
  return stages;
}

void fill_slices(RankPlan& rank, std::vector<Stage>& stages, AttnPass pass) {
  for_each_piece(rank.segments, rank.slices, pass, [&](int stage, const AttnSlice& piece) {
    if (!piece.q_range.empty()) stages[static_cast<size_t>(stage)].slices.push_back(piece);
  });
  for (Stage& stage : stages) {
    stage.slices = merge_touching(std::move(stage.slices));
    for (const AttnSlice& slice : stage.slices) stage.area += area(slice);
  }
}

std::vector<Stage>& stages_of(RankPlan& rank, AttnPass pass) {
  return pass == AttnPass::kForward ? rank.forward : rank.backward;
}

// Reserves one copy per segment. Copy lists of many ranks are most of a plan's memory; lists that grow on demand would
// take half as much again.
void reserve_exchanges(std::vector<RankPlan>& ranks, AttnPass pass) {
  const size_t num_stages = ranks.empty() ? 0 : stages_of(ranks[0], pass).size();
  std::vector<size_t> num_sends(ranks.size() * num_stages), num_recvs(num_stages);
  for (size_t r = 0; r < ranks.size(); ++r) {
    num_recvs.assign(num_stages, 0);
    for (const KvSegment& segment : ranks[r].segments) {
      const size_t owner = static_cast<size_t>(segment.owner);
      if (owner == r) continue;
      const size_t stage = static_cast<size_t>(stage_of(segment, pass));
      ++num_recvs[stage];
      ++num_sends[owner * num_stages + stage];
    }
    for (size_t s = 0; s < num_stages; ++s) stages_of(ranks[r], pass)[s].exchange.recvs.reserve(num_recvs[s]);
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t s = 0; s < num_stages; ++s) {
      stages_of(ranks[r], pass)[s].exchange.sends.reserve(num_sends[r * num_stages + s]);
    }
  }
}

// Shard order and buffer order both follow the global order. So sender and receiver list the same pieces in the same
// order, and join the same neighbours.
void fill_exchanges(std::vector<RankPlan>& ranks, AttnPass pass) {
  reserve_exchanges(ranks, pass);
  std::vector<const KvSegment*> remote;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    RankPlan& rank = ranks[static_cast<size_t>(r)];
    remote.clear();
    for (const KvSegment& segment : rank.segments) {
      if (segment.owner != r) remote.push_back(&segment);
    }
    std::stable_sort(remote.begin(), remote.end(), [](auto* a, auto* b) { return a->owner < b->owner; });
    for (const KvSegment* segment : remote) {
      const size_t stage = static_cast<size_t>(stage_of(*segment, pass));
      const int64_t num_rows = segment->global.size();
      RankPlan& owner = ranks[static_cast<size_t>(segment->owner)];
      append_copy(stages_of(rank, pass)[stage].exchange.recvs,
                  {segment->owner, {segment->row, segment->row + num_rows}, segment->owner_row});
      append_copy(stages_of(owner, pass)[stage].exchange.sends,
                  {r, {segment->owner_row, segment->owner_row + num_rows}, segment->row});
    }
  }
}

// Whether each segment has the same stage in both passes, for example if each pass has one remote stage.
bool has_same_stages(const RankPlan& rank) {
  return std::all_of(rank.segments.begin(), rank.segments.end(),
                     [](const KvSegment& segment) { return segment.stage_fwd == segment.stage_bwd; });
}

void copy_stages(const std::vector<Stage>& from, std::vector<Stage>& to) {
  for (size_t s = 0; s < from.size(); ++s) {
    const bool kept = to[s].kept;
    to[s] = from[s];
    to[s].kept = kept;
  }
}

// Prefix sums of visible area over buffer rows, for slices that are rectangles on a coarse grid of keys (block-sparse
// masks). The area of a stripe is the difference of two sums.
class AreasOfKeys {
 public:
  // Builds the sums. Returns false for other slices; before() must then not be called.
  bool add_up(std::span<const KvSegment> segments, std::span<const AttnSlice> slices) {
    constexpr int64_t kMostCells = 8;  // for a slice
    if (segments.empty()) return false;
    last_ = segments.back().row + segments.back().global.size();  // at which the last cell may be cut
    uint64_t borders = 0;
    for (const AttnSlice& slice : slices) {
      if (slice.min_diag != kOpenMinDiag || slice.max_diag != kOpenMaxDiag) return false;
      borders |= static_cast<uint64_t>(slice.k_range.begin);
      if (slice.k_range.end < last_) borders |= static_cast<uint64_t>(slice.k_range.end);
    }
    if (borders == 0) return false;
    shift_ = std::countr_zero(borders);
    const int64_t num_cells = ((last_ - 1) >> shift_) + 1;
    if (num_cells > kMostCells * std::ssize(slices)) return false;
    rows_.assign(static_cast<size_t>(num_cells) + 1, 0);
    for (const AttnSlice& slice : slices) {
      rows_[static_cast<size_t>(slice.k_range.begin >> shift_)] += slice.q_range.size();
      rows_[static_cast<size_t>(((slice.k_range.end - 1) >> shift_) + 1)] -= slice.q_range.size();
    }
    areas_.assign(rows_.size(), 0);
    for (size_t cell = 1; cell < rows_.size(); ++cell) {
      rows_[cell] += rows_[cell - 1];
      areas_[cell] = areas_[cell - 1] + (rows_[cell - 1] << shift_);
    }
    return true;
  }

  int64_t before(int64_t key) const {
    if (key == 0) return 0;
    const auto cell = static_cast<size_t>((key - 1) >> shift_);
    return areas_[cell] + rows_[cell] * (key - (static_cast<int64_t>(cell) << shift_));
  }

 private:
  int64_t last_ = 0;
  int shift_ = 0;
  std::vector<int64_t> rows_;   // query rows that attend to a cell's keys
  std::vector<int64_t> areas_;  // area of all cells before this one
};

}  // namespace

void append_copy(std::vector<RowCopy>& copies, const RowCopy& copy) {
  if (!copies.empty()) {
    RowCopy& last = copies.back();
    if (last.peer == copy.peer && last.rows.end == copy.rows.begin &&
        last.peer_row + last.rows.size() == copy.peer_row) {
      last.rows.end = copy.rows.end;
      return;
    }
  }
  copies.push_back(copy);
}

void assign_stages(RankPlan& rank, int self, const StageCounts& counts, bool keep_remote_kv) {
  std::vector<KvSegment>& segments = rank.segments;
  const auto select = [&](const auto& condition) {
    std::vector<bool> selected(segments.size());
    for (size_t i = 0; i < segments.size(); ++i) selected[i] = segments[i].owner != self && condition(segments[i]);
    return selected;
  };
  if (counts.forward > 0)
    assign_groups(segments, select([](auto&) { return true; }), 1, counts.forward, AttnPass::kForward);
  if (counts.backward == 0) return;
  if (!keep_remote_kv) {
    assign_groups(segments, select([](auto&) { return true; }), 1, counts.backward, AttnPass::kBackward);
    return;
  }
  const auto kept = [&](const KvSegment& segment) { return segment.stage_fwd == counts.forward; };
  for (KvSegment& segment : segments) {
    if (segment.owner != self && kept(segment)) segment.stage_bwd = counts.backward;
  }
  if (counts.backward > 1) {
    assign_groups(segments, select([&](auto& segment) { return !kept(segment); }), 1, counts.backward - 1,
                  AttnPass::kBackward);
  }
}

void build_stages(std::vector<RankPlan>& ranks, const StageCounts& counts, bool keep_remote_kv) {
  for (RankPlan& rank : ranks) {
    rank.forward = empty_stages(counts.forward, false);
    fill_slices(rank, rank.forward, AttnPass::kForward);
  }
  fill_exchanges(ranks, AttnPass::kForward);
  const bool are_same = std::all_of(ranks.begin(), ranks.end(), has_same_stages) && counts.forward == counts.backward;
  for (RankPlan& rank : ranks) {
    rank.backward = empty_stages(counts.backward, keep_remote_kv);
    if (are_same) {
      copy_stages(rank.forward, rank.backward);
    } else {
      fill_slices(rank, rank.backward, AttnPass::kBackward);
    }
  }
  if (!are_same) fill_exchanges(ranks, AttnPass::kBackward);
}

std::vector<int64_t> stage_areas(std::span<const KvSegment> segments, std::span<const AttnSlice> slices, int num_stages,
                                 AttnPass pass) {
  std::vector<int64_t> areas(static_cast<size_t>(num_stages) + 1);
  if (AreasOfKeys of_keys; of_keys.add_up(segments, slices)) {
    for (const Stripe& stripe : stripes_of(segments, pass)) {
      areas[static_cast<size_t>(stripe.stage)] += of_keys.before(stripe.rows.end) - of_keys.before(stripe.rows.begin);
    }
    return areas;
  }
  for_each_piece(segments, slices, pass,
                 [&](int stage, const AttnSlice& piece) { areas[static_cast<size_t>(stage)] += area(piece); });
  return areas;
}

std::vector<size_t> stage_order(size_t num_stages, bool starts_with_kept) {
  std::vector<size_t> order;
  if (starts_with_kept) {
    order.push_back(num_stages - 1);
    for (size_t stage = 1; stage + 1 < num_stages; ++stage) order.push_back(stage);
    order.push_back(0);
  } else {
    for (size_t stage = 0; stage < num_stages; ++stage) order.push_back(stage);
  }
  return order;
}

}  // namespace tangram
