// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/movement/clusters.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "plan/chunk_areas.hpp"
#include "plan/cost.hpp"
#include "plan/rank_plan.hpp"
#include "plan/row_bytes.hpp"

namespace tangram {

namespace {

// Keys are split among column parts in units of about this share of the sequence. It is fine enough to balance, and
// coarse enough to be counted for every block of ranks.
constexpr int64_t kMaxColumnUnits = 512;

std::vector<Range> merged(const std::vector<Range>& a, const std::vector<Range>& b) {
  std::vector<Range> all;
  all.reserve(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  size_t num_kept = 0;
  for (const Range& range : all) {
    if (num_kept > 0 && range.begin <= all[num_kept - 1].end) {
      all[num_kept - 1].end = std::max(all[num_kept - 1].end, range.end);
    } else {
      all[num_kept++] = range;
    }
  }
  all.resize(num_kept);
  return all;
}

AttnSlice turned(const AttnSlice& slice) {
  return {slice.k_range, slice.q_range, slice.max_diag == kOpenMaxDiag ? kOpenMinDiag : -slice.max_diag,
          slice.min_diag == kOpenMinDiag ? kOpenMaxDiag : -slice.min_diag};
}

// Rows of a column unit: divides the chunks of the dispatch, or is made of whole ones.
int64_t column_unit(const Dispatch& k_dispatch) {
  const int64_t wanted = std::max<int64_t>(1, k_dispatch.seqlen() / kMaxColumnUnits);
  int64_t unit = k_dispatch.chunk_size;
  while (unit % 2 == 0 && unit / 2 >= wanted) unit /= 2;
  return unit >= wanted ? unit : (wanted + unit - 1) / unit * unit;
}

// Everything that the search asks about a block of ranks.
class Search {
 public:
  Search(const Plan& plan, const PlanRuns& runs, const RowWork& work, int head_groups, bool with_columns, AttnPass pass)
      : plan_(plan),
        work_(work),
        head_groups_(head_groups),
        with_columns_(with_columns),
        pass_(pass),
        bytes_(row_bytes(plan.config, pass)),
        k_runs_(runs.k),
        own_keys_(work.areas.size()) {}

  // A block as one cluster: cost of its ranks, and the union of their keys is left in `keys`.
  struct Block {
    double cost = 0;
    std::vector<Cluster> clusters;
    std::vector<Range> keys;
  };

  Block solve(const int* begin, const int* end) {
    if (end - begin == 1) return one_cluster(begin, end, work_.keys[static_cast<size_t>(*begin)]);
    const int* middle = begin + (end - begin) / 2;
    Block left = solve(begin, middle);
    Block right = solve(middle, end);
    Block whole = one_cluster(begin, end, merged(left.keys, right.keys));
    if (whole.cost < left.cost + right.cost) return whole;
    whole.cost = left.cost + right.cost;
    whole.clusters = std::move(left.clusters);
    whole.clusters.insert(whole.clusters.end(), right.clusters.begin(), right.clusters.end());
    return whole;
  }

  Block one_cluster(const int* begin, const int* end, std::vector<Range> keys) {
    Block block;
    Cluster cluster;
    cluster.ranks.assign(begin, end);
    const int size = static_cast<int>(end - begin);
    cluster.head_parts = std::gcd(size, head_groups_);
    const int column_parts = size / cluster.head_parts;
    if (column_parts > 1 && !with_columns_) {
      block.cost = std::numeric_limits<double>::infinity();
      block.keys = std::move(keys);
      return block;
    }
    Queries all;
    for (const int rank : cluster.ranks) {
      all.rows += work_.query_rows[static_cast<size_t>(rank)];
      all.runs += work_.query_runs[static_cast<size_t>(rank)];
    }
    std::vector<int64_t> part_areas(static_cast<size_t>(column_parts));
    if (column_parts == 1) {
      for (const int rank : cluster.ranks) part_areas[0] += work_.areas[static_cast<size_t>(rank)];
      count_own(keys);
      int64_t rows = 0;
      for (const Range& range : keys) rows += range.size();
      for (const int rank : cluster.ranks) {
        const int64_t remote = rows - own_keys_[static_cast<size_t>(rank)];
        block.cost += rank_cost(cluster, all, rank, part_areas[0], remote);
      }
      clear_own();
    } else {
      split_columns(cluster, part_areas);
      for (int n = 0; n < size; ++n) {
        const int rank = cluster.ranks[static_cast<size_t>(n)];
        const size_t part = static_cast<size_t>(n / cluster.head_parts);
        const std::vector<Range>& columns = cluster.columns[part];
        count_own(columns);
        int64_t rows = 0;
        for (const Range& range : columns) rows += range.size();
        block.cost += rank_cost(cluster, all, rank, part_areas[part], rows - own_keys_[static_cast<size_t>(rank)]);
        clear_own();
      }
    }
    block.clusters.push_back(std::move(cluster));
    block.keys = std::move(keys);
    return block;
  }

 private:
  struct Queries {
    int64_t rows = 0;
    int64_t runs = 0;
  };

  // Seconds of a rank without any overlap, to a power that lets the slowest ranks weigh most.
  double rank_cost(const Cluster& cluster, const Queries& all, int rank, int64_t area, int64_t remote_keys) const {
    const double share = 1.0 / cluster.head_parts;
    const int64_t own = work_.query_rows[static_cast<size_t>(rank)];
    const int64_t others = static_cast<int64_t>(cluster.ranks.size()) - 1;
    const double in = share * (static_cast<double>((all.rows - own) * bytes_.q_in + own * others * bytes_.q_back) +
                               static_cast<double>(remote_keys * (bytes_.kv_in + bytes_.kv_back)));
    const int64_t runs = others == 0 ? 0 : 2 * (all.runs - work_.query_runs[static_cast<size_t>(rank)]);
    const double copies = static_cast<double>((total_segments_ + runs) * head_groups_) * share;
    const CostModel& cost = plan_.config.cost;
    const double seconds =
        share * compute_seconds(plan_.config, area, pass_) + in / cost.link_bytes_per_s + copies * cost.copy_latency_s;
    const double scaled = seconds / scale();
    const double squared = scaled * scaled, fourth = squared * squared, eighth = fourth * fourth;
    return eighth * eighth;
  }

  // About the time of a rank, so that powers stay in range.
  double scale() const {
    return compute_seconds(plan_.config, plan_.mask.area(), pass_) / plan_.cp_size() +
           static_cast<double>(plan_.k_dispatch.rows_per_rank() * bytes_.kv_in) / plan_.config.cost.link_bytes_per_s +
           1e-9;
  }

  // Rows of `keys` by owner, and in how many pieces they lie.
  void count_own(const std::vector<Range>& keys) {
    auto run = k_runs_.begin();
    total_segments_ = 0;
    for (const Range& range : keys) {
      run = std::upper_bound(run, k_runs_.end(), range.begin,
                             [](int64_t key, const OwnedRun& r) { return key < r.global.end; });
      for (auto at = run; at != k_runs_.end() && at->global.begin < range.end; ++at) {
        own_keys_[static_cast<size_t>(at->owner)] += intersect(range, at->global).size();
        ++total_segments_;
      }
    }
  }
  void clear_own() { std::fill(own_keys_.begin(), own_keys_.end(), 0); }

  // Assigns units of keys to column parts. Units that a part owns stay there while it has capacity; the rest go to the
  // lightest part, largest first.
  void split_columns(Cluster& cluster, std::vector<int64_t>& part_areas) const {
    const int64_t unit = column_unit(plan_.k_dispatch);
    const int64_t num_units = (plan_.k_dispatch.seqlen() + unit - 1) / unit;
    std::vector<AttnSlice> slices;
    for (const int rank : cluster.ranks) {
      for (const AttnSlice& slice : work_.slices[static_cast<size_t>(rank)]) slices.push_back(turned(slice));
    }
    const std::vector<int64_t> areas = chunk_areas(slices, unit, num_units);
    const int64_t total = std::accumulate(areas.begin(), areas.end(), int64_t{0});
    const int64_t room = total / static_cast<int64_t>(part_areas.size());
    std::vector<int> part_of_rank(work_.areas.size(), -1);
    for (size_t n = 0; n < cluster.ranks.size(); ++n) {
      part_of_rank[static_cast<size_t>(cluster.ranks[n])] = static_cast<int>(n) / cluster.head_parts;
    }
    std::vector<int> part_of_unit(areas.size(), -1);
    std::vector<size_t> rest;
    for (size_t u = 0; u < areas.size(); ++u) {
      if (areas[u] == 0) continue;
      const int64_t chunk = static_cast<int64_t>(u) * unit / plan_.k_dispatch.chunk_size;
      const int home = part_of_rank[static_cast<size_t>(plan_.k_dispatch.rank_of_chunk[static_cast<size_t>(chunk)])];
      if (home >= 0 && part_areas[static_cast<size_t>(home)] + areas[u] <= room) {
        part_of_unit[u] = home;
        part_areas[static_cast<size_t>(home)] += areas[u];
      } else {
        rest.push_back(u);
      }
    }
    std::stable_sort(rest.begin(), rest.end(), [&](size_t a, size_t b) { return areas[a] > areas[b]; });
    for (const size_t u : rest) {
      const auto lightest = std::min_element(part_areas.begin(), part_areas.end());
      part_of_unit[u] = static_cast<int>(lightest - part_areas.begin());
      *lightest += areas[u];
    }
    cluster.columns.resize(part_areas.size());
    for (size_t u = 0; u < areas.size(); ++u) {
      if (part_of_unit[u] < 0) continue;
      const Range rows{static_cast<int64_t>(u) * unit,
                       std::min(static_cast<int64_t>(u + 1) * unit, plan_.k_dispatch.seqlen())};
      std::vector<Range>& columns = cluster.columns[static_cast<size_t>(part_of_unit[u])];
      if (!columns.empty() && columns.back().end == rows.begin) {
        columns.back().end = rows.end;
      } else {
        columns.push_back(rows);
      }
    }
  }

  const Plan& plan_;
  const RowWork& work_;
  const int head_groups_;
  const bool with_columns_;  // whether keys may be split too
  const AttnPass pass_;
  const RowBytes bytes_;
  const std::vector<OwnedRun>& k_runs_;
  std::vector<int64_t> own_keys_;  // of the keys counted last, by rank
  int64_t total_segments_ = 0;
};

// Permutes a list sorted by weight so that its halves, their halves, and so on, weigh about the same. Both halves get
// members in the order 1 2 2 1 1 2 2 1.
void assign_in_halves(std::vector<int>::iterator begin, std::vector<int>::iterator end) {
  const int64_t size = end - begin, half = size / 2;
  if (size <= 2) return;
  std::vector<int> first, second;
  for (int64_t i = 0; i < size; ++i) {
    const bool to_first = i % 4 == 0 || i % 4 == 3;
    const bool room = static_cast<int64_t>(to_first ? first.size() : second.size()) < (to_first ? half : size - half);
    (to_first == room ? first : second).push_back(begin[i]);
  }
  std::copy(first.begin(), first.end(), begin);
  std::copy(second.begin(), second.end(), begin + half);
  assign_in_halves(begin, begin + half);
  assign_in_halves(begin + half, end);
}

}  // namespace

RowWork row_work(const Plan& plan, const PlanRuns& runs) {
  const std::vector<OwnedRun>& q_runs = runs.q;
  const size_t num_ranks = static_cast<size_t>(plan.cp_size());
  RowWork work;
  work.slices.resize(num_ranks);
  work.areas.resize(num_ranks);
  work.query_rows.resize(num_ranks);
  work.query_runs.resize(num_ranks);
  for_each_row_piece(plan.mask, q_runs, [&](size_t run, const AttnSlice& piece) {
    const size_t rank = static_cast<size_t>(q_runs[run].owner);
    work.slices[rank].push_back(piece);
    work.areas[rank] += area(piece);
  });
  for (size_t r = 0; r < num_ranks; ++r) {
    work.keys.push_back(needed_keys(work.slices[r]));
    for (const Range& rows : needed_queries(work.slices[r])) {
      work.query_rows[r] += rows.size();
      ++work.query_runs[r];
    }
  }
  return work;
}

std::vector<std::vector<int>> cluster_orders(const RowWork& work) {
  std::vector<int> natural(work.areas.size());
  std::iota(natural.begin(), natural.end(), 0);
  const int64_t total = std::accumulate(work.areas.begin(), work.areas.end(), int64_t{0});
  const int64_t most = *std::max_element(work.areas.begin(), work.areas.end());
  constexpr double kBalanced = 1.02;
  if (static_cast<double>(most) * static_cast<double>(work.areas.size()) <= kBalanced * static_cast<double>(total)) {
    return {natural};
  }
  std::vector<int> balanced = natural;
  std::stable_sort(balanced.begin(), balanced.end(), [&](int a, int b) {
    return work.areas[static_cast<size_t>(a)] > work.areas[static_cast<size_t>(b)];
  });
  assign_in_halves(balanced.begin(), balanced.end());
  return {natural, balanced};
}

ChosenClusters choose_clusters(const Plan& plan, const PlanRuns& runs, const RowWork& work,
                               const std::vector<int>& order, int head_groups, bool with_columns, AttnPass pass) {
  Search search(plan, runs, work, head_groups, with_columns, pass);
  auto block = search.solve(order.data(), order.data() + order.size());
  return {std::move(block.clusters), block.cost, head_groups};
}

RankWork cluster_work(const Plan& plan, const RowWork& work, const std::vector<Cluster>& clusters, int head_groups) {
  RankWork result(work.slices.size());
  std::vector<AttnSlice> pieces;
  for (const Cluster& cluster : clusters) {
    const size_t num_parts = cluster.ranks.size() / static_cast<size_t>(cluster.head_parts);
    const int groups_each = head_groups / cluster.head_parts;
    for (size_t part = 0; part < num_parts; ++part) {
      pieces.clear();
      for (const int rank : cluster.ranks) {
        for (const AttnSlice& slice : work.slices[static_cast<size_t>(rank)]) {
          if (num_parts == 1) {
            pieces.push_back(slice);
            continue;
          }
          const std::vector<Range>& columns = cluster.columns[part];
          auto column = std::upper_bound(columns.begin(), columns.end(), slice.k_range.begin,
                                         [](int64_t key, const Range& range) { return key < range.end; });
          for (; column != columns.end() && column->begin < slice.k_range.end; ++column) {
            const AttnSlice piece = column->contains(slice.k_range) ? slice : cut_columns(slice, *column);
            if (!piece.q_range.empty()) pieces.push_back(piece);
          }
        }
      }
      for (int head_part = 0; head_part < cluster.head_parts; ++head_part) {
        const size_t member = part * static_cast<size_t>(cluster.head_parts) + static_cast<size_t>(head_part);
        std::vector<AttnSlice>& slices = result[static_cast<size_t>(cluster.ranks[member])];
        slices.reserve(pieces.size() * static_cast<size_t>(groups_each));
        for (int g = head_part * groups_each; g < (head_part + 1) * groups_each; ++g) {
          for (const AttnSlice& piece : pieces) {
            slices.push_back(shifted(piece, g * plan.mask.seqlen_q(), g * plan.mask.seqlen_k()));
          }
        }
      }
    }
  }
  return result;
}

}  // namespace tangram
