// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The steps of HybridCP: which rows of which document are where in each step of the rings.
#include <algorithm>
#include <map>

#include "plan/grid/grid.hpp"
#include "plan/grid/sub_ring_layout.hpp"

namespace tangram {

namespace {

class SubRings {
 public:
  explicit SubRings(Plan& plan)
      : plan_(plan),
        q_runs_(owned_runs(plan.q_dispatch)),
        layout_(lay_out_sub_rings(find_documents(plan.mask, 1), q_runs_, owned_runs(plan.k_dispatch), plan.cp_size())) {
    plan.grid()->levels = layout_.levels;
  }

  std::vector<GridStep> steps_of(int rank) const;
  void add_slices(std::vector<std::vector<GridStep>>& steps) const;

 private:
  Exchange first_cast(size_t level, int rank) const;
  Exchange later_cast(int rank, int step) const;
  void send_home(int rank, int step, SubRingStep& result) const;

  Plan& plan_;
  const std::vector<OwnedRun> q_runs_;
  const SubRingLayout layout_;
};

Exchange SubRings::first_cast(size_t level, int rank) const {
  Exchange exchange;
  const int target = layout_.neighbour(level, rank, 1), source = layout_.neighbour(level, rank, -1);
  int64_t row = layout_.rows_before(level, target, 1);
  for (const Range& rows : layout_.part(level, rank).ranges) {
    exchange.sends.push_back({target, rows, row});
    row += rows.size();
  }
  row = layout_.rows_before(level, rank, 1);
  for (const Range& rows : layout_.part(level, source).ranges) {
    exchange.recvs.push_back({source, {row, row + rows.size()}, rows.begin});
    row += rows.size();
  }
  return exchange;
}

Exchange SubRings::later_cast(int rank, int step) const {
  Exchange exchange;
  for (size_t level = 1; level < layout_.sizes.size(); ++level) {
    if (!layout_.moves(level, step)) continue;
    const int target = layout_.neighbour(level, rank, 1), source = layout_.neighbour(level, rank, -1);
    const int64_t sent = layout_.part(level, layout_.neighbour(level, rank, 1 - step)).rows;
    const int64_t from = layout_.rows_before(level, rank, step - 1);
    if (sent > 0) exchange.sends.push_back({target, {from, from + sent}, layout_.rows_before(level, target, step)});
    const int64_t come = layout_.part(level, layout_.neighbour(level, rank, -step)).rows;
    const int64_t to = layout_.rows_before(level, rank, step);
    if (come > 0) exchange.recvs.push_back({source, {to, to + come}, layout_.rows_before(level, source, step - 1)});
  }
  std::sort(exchange.sends.begin(), exchange.sends.end());
  std::sort(exchange.recvs.begin(), exchange.recvs.end());
  return exchange;
}

// In its last step a ring's rows are one place short of a whole round: home is the neighbour.
void SubRings::send_home(int rank, int step, SubRingStep& result) const {
  for (size_t level = 1; level < layout_.sizes.size(); ++level) {
    if (step != layout_.sizes[level] - 1) continue;
    const int owner = layout_.neighbour(level, rank, 1), holder = layout_.neighbour(level, rank, -1);
    const int64_t sent = layout_.part(level, owner).rows, from = layout_.rows_before(level, rank, step);
    if (sent > 0) result.home.sends.push_back({owner, {from, from + sent}, 0});
    const int64_t own = layout_.part(level, rank).rows;
    if (own > 0) result.home.recvs.push_back({holder, {0, own}, layout_.rows_before(level, holder, step)});
    result.home_rows = layout_.part(level, rank).ranges;
  }
}

std::vector<GridStep> SubRings::steps_of(int rank) const {
  std::vector<GridStep> steps(static_cast<size_t>(layout_.num_steps()));
  for (int s = 0; s < layout_.num_steps(); ++s) {
    GridStep& step = steps[static_cast<size_t>(s)];
    step.block = step.source = step.target = step.grad_source = step.grad_target = rank;
    step.posted = std::max(0, s - 1);
    step.sub_rings.rows =
        s == 0 ? plan_.k_dispatch.rows_per_rank() : layout_.rows_before(layout_.sizes.size(), rank, s);
    if (s == 1) {
      for (const SubGroupLevel& shared : plan_.grid()->levels) {
        const size_t level = static_cast<size_t>(std::find(layout_.sizes.begin(), layout_.sizes.end(), shared.ranks) -
                                                 layout_.sizes.begin());
        if (level > 0) step.sub_rings.casts.push_back(first_cast(level, rank));
      }
    }
    if (s > 1) step.sub_rings.casts.push_back(later_cast(rank, s));
    if (s > 0) send_home(rank, s, step.sub_rings);
  }
  return steps;
}

void SubRings::add_slices(std::vector<std::vector<GridStep>>& steps) const {
  const auto slices = cut_by_rank(plan_.mask, q_runs_, plan_.cp_size());
  for (int rank = 0; rank < plan_.cp_size(); ++rank) {
    std::vector<GridStep>& own = steps[static_cast<size_t>(rank)];
    for_each_sub_ring_piece(
        layout_, rank, slices[static_cast<size_t>(rank)], [&](int s, const AttnSlice& piece, const SubRingKeys& keys) {
          const int64_t row = s == 0 ? keys.row : layout_.rows_before(keys.level, rank, s) + keys.part_row;
          own[static_cast<size_t>(s)].slices.push_back(shifted(piece, 0, row - keys.global.begin));
        });
    for (GridStep& step : own) {
      step.slices = merge_touching(std::move(step.slices));
      for (const AttnSlice& slice : step.slices) step.area += area(slice);
    }
  }
}

}  // namespace

void build_sub_rings(Plan& plan) {
  const SubRings rings(plan);
  for (int rank = 0; rank < plan.cp_size(); ++rank) plan.grid()->steps.push_back(rings.steps_of(rank));
  rings.add_slices(plan.grid()->steps);
}

}  // namespace tangram
