// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The lower bound on moved rows, from the columns' point of view. For each slice: where the interval of queries that
// see a key meets a rank's rows. Shares nothing with the row-wise way in which plans find the keys that they need.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "core/require.hpp"
#include "plan/validate.hpp"
#include "tangram/plan.hpp"

namespace tangram {

namespace {

// The rows of each rank, in order, neighbours joined.
std::vector<std::vector<Range>> rows_of_ranks(const Dispatch& dispatch) {
  std::vector<std::vector<Range>> rows(static_cast<size_t>(dispatch.cp_size));
  int64_t begin = 0;
  for (const OwnedChunks& run : dispatch.rank_of_chunk.runs()) {
    rows[static_cast<size_t>(run.rank)].push_back({begin * dispatch.chunk_size, run.end * dispatch.chunk_size});
    begin = run.end;
  }
  return rows;
}

// For each rank the slices, by index and in order, that have queries among its rows. `slices`: by first query.
std::vector<std::vector<size_t>> slices_of_ranks(std::span<const AttnSlice> slices,
                                                 const std::vector<std::vector<Range>>& rows_of_rank) {
  std::vector<std::pair<Range, size_t>> runs;  // with their ranks, in sequence order
  for (size_t rank = 0; rank < rows_of_rank.size(); ++rank) {
    for (const Range& rows : rows_of_rank[rank]) runs.emplace_back(rows, rank);
  }
  std::sort(runs.begin(), runs.end());
  std::vector<std::vector<size_t>> found(rows_of_rank.size());
  std::vector<size_t> open;  // slices that have begun and not ended
  size_t next = 0;
  for (const auto& [rows, rank] : runs) {
    std::erase_if(open, [&](size_t i) { return slices[i].q_range.end <= rows.begin; });
    for (; next < slices.size() && slices[next].q_range.begin < rows.end; ++next) open.push_back(next);
    found[rank].insert(found[rank].end(), open.begin(), open.end());
  }
  for (std::vector<size_t>& of_rank : found) {
    std::sort(of_rank.begin(), of_rank.end());
    of_rank.erase(std::unique(of_rank.begin(), of_rank.end()), of_rank.end());
  }
  return found;
}

// Appends the keys that one rank's queries, `rows`, see through `slice`, in their order. Both ends of the interval of
// queries that see a key only grow from key to key.
void append_seen(const AttnSlice& slice, std::span<const Range> rows, std::vector<Range>& seen) {
  const bool begin_moves = slice.max_diag < kOpenMaxDiag;
  const bool end_moves = slice.min_diag > kOpenMinDiag;
  int64_t key = slice.k_range.begin;
  auto run = std::upper_bound(rows.begin(), rows.end(), slice.queries_of(key).begin,
                              [](int64_t row, const Range& r) { return row < r.end; });
  while (key < slice.k_range.end && run != rows.end() && run->begin < slice.q_range.end) {
    const Range queries = slice.queries_of(key);
    if (run->end <= queries.begin) {
      ++run;
    } else if (run->begin < queries.end) {
      const int64_t end = begin_moves ? std::min(slice.k_range.end, run->end + slice.max_diag) : slice.k_range.end;
      seen.push_back({key, end});
      key = end;
    } else {
      if (!end_moves) break;
      key = run->begin + slice.min_diag;
    }
  }
}

// Keys of `seen`, whose ranges may overlap, outside `own`.
int64_t count_remote(std::vector<Range> seen, std::span<const Range> own) {
  std::sort(seen.begin(), seen.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  int64_t total = 0;
  int64_t counted = 0;  // keys before this one are done
  auto run = own.begin();
  for (const Range& range : seen) {
    const Range fresh{std::max(range.begin, counted), range.end};
    if (fresh.empty()) continue;
    total += fresh.size();
    counted = fresh.end;
    while (run != own.end() && run->end <= fresh.begin) ++run;
    for (auto at = run; at != own.end() && at->begin < fresh.end; ++at) total -= intersect(*at, fresh).size();
  }
  return total;
}

}  // namespace

int64_t rows_lower_bound(const Mask& mask, const Dispatch& q_dispatch, const Dispatch& k_dispatch) {
  const int cp_size = q_dispatch.cp_size;
  validate_dispatch(q_dispatch, cp_size, mask.seqlen_q(), "rows_lower_bound: q_dispatch");
  validate_dispatch(k_dispatch, cp_size, mask.seqlen_k(), "rows_lower_bound: k_dispatch");
  const std::vector<std::vector<Range>> q_rows = rows_of_ranks(q_dispatch);
  const std::vector<std::vector<Range>> k_rows = rows_of_ranks(k_dispatch);
  const std::vector<std::vector<size_t>> slices = slices_of_ranks(mask.slices(), q_rows);
  int64_t total = 0;
  for (size_t rank = 0; rank < q_rows.size(); ++rank) {
    std::vector<Range> seen;
    for (const size_t i : slices[rank]) append_seen(mask.slices()[i], q_rows[rank], seen);
    total += count_remote(std::move(seen), k_rows[rank]);
  }
  return total;
}

}  // namespace tangram
