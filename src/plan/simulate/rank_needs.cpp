// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/simulate/rank_needs.hpp"

#include <algorithm>

#include "plan/rank_plan.hpp"

namespace tangram::sim {

namespace {

// The first run that ends beyond `row`.
size_t run_at(const std::vector<OwnedRun>& runs, int64_t row) {
  const auto run = std::upper_bound(runs.begin(), runs.end(), row,
                                    [](int64_t r, const OwnedRun& candidate) { return r < candidate.global.end; });
  return static_cast<size_t>(run - runs.begin());
}

// Calls visit(run, num_rows) for the runs that meet `rows`.
template <class Visit>
void for_each_run(const std::vector<OwnedRun>& runs, const Range& rows, const Visit& visit) {
  for (size_t i = run_at(runs, rows.begin); i < runs.size() && runs[i].global.begin < rows.end; ++i) {
    visit(runs[i], intersect(runs[i].global, rows).size());
  }
}

LinkLoad one_copy(int64_t num_rows) { return {static_cast<double>(num_rows), 1}; }
LinkLoad negative(const LinkLoad& load) { return {-load.bytes, -load.copies}; }

// A part of the K/V buffer that one stage brings.
struct Stripe {
  Range rows;
  size_t stage = 0;
};

// Sorted by row; neighbours of one stage are one stripe.
std::vector<Stripe> joined(std::vector<Stripe> stripes) {
  std::sort(stripes.begin(), stripes.end(), [](const Stripe& a, const Stripe& b) { return a.rows < b.rows; });
  size_t num_kept = 0;
  for (const Stripe& stripe : stripes) {
    if (num_kept > 0 && stripes[num_kept - 1].stage == stripe.stage) {
      stripes[num_kept - 1].rows.end = stripe.rows.end;
    } else {
      stripes[num_kept++] = stripe;
    }
  }
  stripes.resize(num_kept);
  return stripes;
}

// Work of each stage, from what it brings.
void count_stages(const RankNeeds& needs, std::vector<Stripe> stripes, const KernelModel& kernel, StagedNeeds& staged) {
  stripes = joined(std::move(stripes));
  for (const AttnSlice& slice : needs.slices) {
    auto at = std::upper_bound(stripes.begin(), stripes.end(), slice.k_range.begin,
                               [](int64_t row, const Stripe& stripe) { return row < stripe.rows.end; });
    for (; at != stripes.end() && at->rows.begin < slice.k_range.end; ++at) {
      const bool whole = at->rows.contains(slice.k_range);
      staged.work[at->stage] += count_work(whole ? slice : cut_columns(slice, at->rows), kernel);
    }
  }
}

}  // namespace

KeyRuns key_runs(const Dispatch& k_dispatch, const SimInput& input) {
  KeyRuns runs{owned_runs(k_dispatch), std::vector<std::vector<OwnedRun>>(static_cast<size_t>(input.cp_size())),
               std::vector<std::vector<OwnedRun>>(static_cast<size_t>(input.num_nodes()))};
  for (const OwnedRun& run : runs.all) {
    runs.of_rank[static_cast<size_t>(run.owner)].push_back(run);
    runs.of_node[static_cast<size_t>(input.node_of(run.owner))].push_back(run);
  }
  return runs;
}

RankNeeds needs_of(std::vector<AttnSlice> slices, const KeyRuns& runs, int rank) {
  RankNeeds needs;
  const std::vector<OwnedRun>& own = runs.of_rank[static_cast<size_t>(rank)];
  const std::vector<Range> needed = needed_keys(slices);
  for (const Range& keys : needed) {
    const int64_t to_buffer = needs.buffer_rows - keys.begin;
    int64_t at = keys.begin;
    const auto take_remote_until = [&](int64_t end) {
      if (at >= end) return;
      needs.remote.push_back({{at, end}, at + to_buffer});
      needs.remote_rows += end - at;
    };
    for_each_run(own, keys, [&](const OwnedRun& run, int64_t num_rows) {
      const int64_t begin = std::max(run.global.begin, keys.begin);
      take_remote_until(begin);
      at = begin + num_rows;
      needs.local.push_back({begin + to_buffer, at + to_buffer});
    });
    take_remote_until(keys.end);
    needs.buffer_rows += keys.size();
  }
  move_keys_to_buffer(slices, needed);
  needs.slices = merge_touching(std::move(slices));
  return needs;
}

Transfer rows_of_piece(const Range& rows, const KeyRuns& runs, int node) {
  Transfer result;
  const size_t num_copies = run_at(runs.all, rows.end - 1) - run_at(runs.all, rows.begin) + 1;
  result.between = {static_cast<double>(rows.size()), static_cast<double>(num_copies)};
  for_each_run(runs.of_node[static_cast<size_t>(node)], rows, [&](const OwnedRun&, int64_t num_rows) {
    result.inside += one_copy(num_rows);
    result.between += negative(one_copy(num_rows));
  });
  return result;
}

StagedNeeds split_stages(const RankNeeds& needs, const KeyRuns& runs, int node, int num_stages,
                         const KernelModel& kernel) {
  const size_t num_entries = static_cast<size_t>(num_stages) + 1;
  StagedNeeds staged{std::vector<Work>(num_entries), std::vector<Transfer>(num_entries)};
  std::vector<Stripe> stripes;
  for (const Range& rows : needs.local) stripes.push_back({rows, 0});
  int64_t done = 0;
  size_t stage = 1;
  for (const RemotePiece& piece : needs.remote) {
    for (int64_t at = piece.global.begin; at < piece.global.end;) {
      const auto goal = [&] { return needs.remote_rows * static_cast<int64_t>(stage) / num_stages; };
      while (goal() == done) ++stage;
      const int64_t end = std::min(piece.global.end, at + goal() - done);
      const int64_t to_buffer = piece.row - piece.global.begin;
      stripes.push_back({{at + to_buffer, end + to_buffer}, stage});
      staged.rows[stage] += rows_of_piece({at, end}, runs, node);
      done += end - at;
      at = end;
    }
  }
  count_stages(needs, std::move(stripes), kernel, staged);
  return staged;
}

StagedNeeds split_node_stages(const RankNeeds& needs, const KeyRuns& runs, int node, const std::vector<int64_t>& ends,
                              int num_stages, const KernelModel& kernel) {
  const size_t num_entries = static_cast<size_t>(num_stages) + 1;
  StagedNeeds staged{std::vector<Work>(num_entries), std::vector<Transfer>(num_entries)};
  std::vector<Stripe> stripes;
  for (const Range& rows : needs.local) stripes.push_back({rows, 0});
  size_t part = 0;
  for (const RemotePiece& piece : needs.remote) {
    const int64_t to_buffer = piece.row - piece.global.begin;
    const auto take = [&](size_t stage, const Range& rows) {
      if (rows.empty()) return;
      stripes.push_back({{rows.begin + to_buffer, rows.end + to_buffer}, stage});
      const Transfer owned = rows_of_piece(rows, runs, node);
      staged.rows[stage].inside += owned.inside;
      staged.rows[stage].inside += owned.between;  // handed on by relays
    };
    const auto take_crossing = [&](Range rows) {
      for (; part + 1 < ends.size() && ends[part] < rows.end; ++part) {
        const int64_t end = std::max(rows.begin, ends[part]);
        take(part + 2, {rows.begin, end});
        rows.begin = end;
      }
      take(ends.empty() ? 1 : part + 2, rows);
    };
    int64_t at = piece.global.begin;
    for_each_run(runs.of_node[static_cast<size_t>(node)], piece.global, [&](const OwnedRun& run, int64_t num_rows) {
      const int64_t begin = std::max(run.global.begin, piece.global.begin);
      take_crossing({at, begin});
      at = begin + num_rows;
      take(1, {begin, at});
    });
    take_crossing({at, piece.global.end});
  }
  count_stages(needs, std::move(stripes), kernel, staged);
  return staged;
}

std::vector<Transfer> sent_rows(const std::vector<RankNeeds>& ranks, const KeyRuns& runs, const SimInput& input) {
  std::vector<Transfer> sent(ranks.size());
  std::vector<int64_t> whole_runs(runs.all.size() + 1);  // differences: how often a run is sent whole
  const auto add_between = [&](size_t run, const LinkLoad& load) {
    sent[static_cast<size_t>(runs.all[run].owner)].between += load;
  };
  for (size_t r = 0; r < ranks.size(); ++r) {
    const size_t node = static_cast<size_t>(input.node_of(static_cast<int>(r)));
    for (const RemotePiece& piece : ranks[r].remote) {
      const Range rows = piece.global;
      const size_t first = run_at(runs.all, rows.begin);
      const size_t last = run_at(runs.all, rows.end - 1);
      add_between(first, one_copy(intersect(runs.all[first].global, rows).size()));
      if (last > first) {
        add_between(last, one_copy(intersect(runs.all[last].global, rows).size()));
        ++whole_runs[first + 1];
        --whole_runs[last];
      }
      for_each_run(runs.of_node[node], rows, [&](const OwnedRun& run, int64_t num_rows) {
        sent[static_cast<size_t>(run.owner)].inside += one_copy(num_rows);
        sent[static_cast<size_t>(run.owner)].between += negative(one_copy(num_rows));
      });
    }
  }
  int64_t times = 0;
  for (size_t i = 0; i < runs.all.size(); ++i) {
    times += whole_runs[i];
    add_between(i, {static_cast<double>(times * runs.all[i].global.size()), static_cast<double>(times)});
  }
  return sent;
}

}  // namespace tangram::sim
