// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Our own way to assign work: ranks form clusters that share their queries, split by heads and then by keys.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/movement/movement.hpp"
#include "plan/stages.hpp"

namespace tangram {

/// Ranks that compute together for the queries of all of them. Member n works on head part `n % head_parts` and on the
/// keys of column part `n / head_parts`.
struct Cluster {
  std::vector<int> ranks;
  int head_parts = 1;
  /// Keys of every column part, sorted ranges; empty when there is one part, which has all keys.
  std::vector<std::vector<Range>> columns;

  friend bool operator==(const Cluster&, const Cluster&) = default;
};

/// Input of the search: the work of every rank if only K/V moved.
struct RowWork {
  std::vector<std::vector<AttnSlice>> slices;  // [rank] global rows, each inside one run of queries
  std::vector<std::vector<Range>> keys;        // [rank] that these slices see
  std::vector<int64_t> areas;
  std::vector<int64_t> query_rows;  // that see a key
  std::vector<int64_t> query_runs;  // contiguous pieces of them
};
RowWork row_work(const Plan& plan, const PlanRuns& runs);

/// Orders of the ranks in which neighbours may form clusters: the given order, and one whose halves, quarters, ...
/// weigh about the same, unless the given one does.
std::vector<std::vector<int>> cluster_orders(const RowWork& work);

/// The clusters with the least cost among those that halve `order` again and again. Heads are split as far as
/// the cluster and `head_groups` allow, keys (`with_columns`) among what ranks then remain.
struct ChosenClusters {
  std::vector<Cluster> clusters;
  double cost = 0;  // to compare orders
  int head_groups = 1;
};
ChosenClusters choose_clusters(const Plan& plan, const PlanRuns& runs, const RowWork& work,
                               const std::vector<int>& order, int head_groups, bool with_columns, AttnPass pass);

/// The work of every rank, for `head_groups` groups, a multiple of every cluster's head_parts.
RankWork cluster_work(const Plan& plan, const RowWork& work, const std::vector<Cluster>& clusters, int head_groups);

}  // namespace tangram
