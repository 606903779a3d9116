// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/grid/sub_ring_layout.hpp"

namespace tangram {

namespace {

// Calls visit(run, global rows) for the pieces of sorted ranges by owner.
template <class Visit>
void for_each_owned_piece(const std::vector<Range>& rows, const std::vector<OwnedRun>& runs, const Visit& visit) {
  for (const Range& range : rows) {
    auto run = std::upper_bound(runs.begin(), runs.end(), range.begin,
                                [](int64_t row, const OwnedRun& r) { return row < r.global.end; });
    for (; run != runs.end() && run->global.begin < range.end; ++run) visit(*run, intersect(run->global, range));
  }
}

// Where keys lie in their shards, and what moves. Keys of a shard come in its order.
void fill_parts(SubRingLayout& layout, const std::vector<OwnedRun>& k_runs) {
  auto run = k_runs.begin();
  for (SubRingKeys& keys : layout.keys) {
    run = std::upper_bound(run, k_runs.end(), keys.global.begin,
                           [](int64_t row, const OwnedRun& r) { return row < r.global.end; });
    keys.row = run->row + keys.global.begin - run->global.begin;
    if (keys.level == 0) continue;
    SubRingPart& part = layout.parts[keys.level][static_cast<size_t>(keys.owner)];
    keys.part_row = part.rows;
    part.rows += keys.global.size();
    if (part.ranges.empty() || part.ranges.back().end != keys.row) part.ranges.push_back({keys.row, keys.row});
    part.ranges.back().end = keys.row + keys.global.size();
  }
}

}  // namespace

int64_t SubRingLayout::rows_before(size_t level, int rank, int step) const {
  int64_t rows = 0;
  for (size_t before = 1; before < level; ++before) {
    if (moves(before, step)) rows += part_in_step(before, rank, step).rows;
  }
  return rows;
}

int64_t SubRingLayout::rows_home(int rank, int step) const {
  for (size_t level = 1; level < sizes.size(); ++level) {
    if (step == sizes[level] - 1) return part(level, rank).rows;
  }
  return 0;
}

SubRingLayout lay_out_sub_rings(const std::vector<MaskDocument>& documents, const std::vector<OwnedRun>& q_runs,
                                const std::vector<OwnedRun>& k_runs, int cp_size) {
  SubRingLayout layout;
  layout.sizes = sub_group_sizes(cp_size);
  layout.parts.assign(layout.sizes.size(), std::vector<SubRingPart>(static_cast<size_t>(cp_size)));
  std::vector<SubGroupLevel> levels(layout.sizes.size());
  for (size_t level = 0; level < levels.size(); ++level) levels[level].ranks = layout.sizes[level];
  for (const MaskDocument& document : documents) {
    int lowest = cp_size, highest = 0;
    const auto hold = [&](const OwnedRun& run, const Range&) {
      lowest = std::min(lowest, run.owner);
      highest = std::max(highest, run.owner);
    };
    for_each_owned_piece(document.q_rows, q_runs, hold);
    const size_t first_key = layout.keys.size();
    for_each_owned_piece(document.k_rows, k_runs, [&](const OwnedRun& run, const Range& rows) {
      hold(run, rows);
      layout.keys.push_back({rows, run.owner, 0, 0, 0});
    });
    size_t level = 0;
    while (lowest / layout.sizes[level] != highest / layout.sizes[level]) ++level;
    for (size_t k = first_key; k < layout.keys.size(); ++k) layout.keys[k].level = level;
    layout.level_of_document.push_back(level);
    ++levels[level].num_documents;
    levels[level].q_rows += document.q_size();
    levels[level].k_rows += document.k_size();
  }
  for (const SubGroupLevel& level : levels) {
    if (level.num_documents > 0) layout.levels.push_back(level);
  }
  std::sort(layout.keys.begin(), layout.keys.end(),
            [](const SubRingKeys& a, const SubRingKeys& b) { return a.global < b.global; });
  fill_parts(layout, k_runs);
  return layout;
}

SubRingLoads count_sub_ring_loads(const Mask& mask, const SubRingLayout& layout, const std::vector<OwnedRun>& q_runs,
                                  int cp_size) {
  const auto slices = cut_by_rank(mask, q_runs, cp_size);
  SubRingLoads loads;
  for (int rank = 0; rank < cp_size; ++rank) {
    std::vector<SubRingLoad>& steps = loads.emplace_back(static_cast<size_t>(layout.num_steps()));
    for_each_sub_ring_piece(layout, rank, slices[static_cast<size_t>(rank)],
                            [&](int step, const AttnSlice& piece, const SubRingKeys&) {
                              steps[static_cast<size_t>(step)].area += area(piece);
                            });
    for (int step = 1; step < layout.num_steps(); ++step) {
      steps[static_cast<size_t>(step)].rows = layout.rows_in_step(rank, step);
      steps[static_cast<size_t>(step)].rows_home = layout.rows_home(rank, step);
    }
  }
  return loads;
}

PredictedTime predict_hybrid_cp(const Mask& mask, const DistAttnConfig& config, const AssignedRows& rows) {
  const SubRingLayout layout = lay_out_sub_rings(find_documents(mask, 1), rows.q, rows.k, config.cp_size);
  return predict_sub_rings(config, count_sub_ring_loads(mask, layout, rows.q, config.cp_size),
                           mask.seqlen_q() / config.cp_size);
}

}  // namespace tangram
