// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The lower bound on moved rows, from the columns' point of view: for each slice, where the interval of queries that
// see a key lies in the chunks. Shares nothing with the row-wise way in which plans find the keys that they need.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/require.hpp"
#include "plan/validate.hpp"
#include "tangram/plan.hpp"

namespace tangram {

namespace {

// For each rank and chunk the first chunk of the rank at or after it, num_chunks when there is none.
std::vector<int64_t> next_chunk_table(const Dispatch& dispatch, int rank) {
  const int64_t num_chunks = dispatch.num_chunks();
  std::vector<int64_t> next(static_cast<size_t>(num_chunks) + 1, num_chunks);
  for (int64_t c = num_chunks; c-- > 0;) {
    next[static_cast<size_t>(c)] =
        dispatch.rank_of_chunk[static_cast<size_t>(c)] == rank ? c : next[static_cast<size_t>(c) + 1];
  }
  return next;
}

// Appends the keys that queries of one rank see through `slice`, in their order.
void append_seen(const AttnSlice& slice, int64_t chunk_size, const std::vector<int64_t>& next_chunk,
                 std::vector<Range>& seen) {
  const size_t first = seen.size();
  int64_t key = slice.k_range.begin;
  while (key < slice.k_range.end) {
    const Range queries = slice.queries_of(key);
    // How many keys further both ends of the interval stay in their chunks, or stay put at the border of the slice.
    int64_t steps = slice.k_range.end - key;
    const auto limit = [&](int64_t row, bool moves) {
      if (moves) steps = std::min(steps, chunk_size - row % chunk_size);
    };
    const bool begin_moves = slice.max_diag < kOpenMaxDiag;
    const bool end_moves = slice.min_diag > kOpenMinDiag && key - slice.min_diag + 1 < slice.q_range.end;
    if (begin_moves && key - slice.max_diag < slice.q_range.begin) {
      steps = std::min(steps, slice.q_range.begin - (key - slice.max_diag));
    } else {
      limit(queries.begin, begin_moves);
    }
    if (end_moves) {
      limit(queries.end - 1, true);
      steps = std::min(steps, slice.q_range.end - queries.end);
    }
    if (!queries.empty()) {
      const int64_t chunk = next_chunk[static_cast<size_t>(queries.begin / chunk_size)];
      // The rank's next chunk starts at or before `begin`, or wholly after it.
      if (std::max(queries.begin, chunk * chunk_size) < queries.end) {
        if (seen.size() > first && seen.back().end == key) {
          seen.back().end += steps;
        } else {
          seen.push_back({key, key + steps});
        }
      }
    }
    key += steps;
  }
}

// Keys of `seen`, whose ranges may overlap, that `rank` does not own.
int64_t count_remote(std::vector<Range> seen, const Dispatch& k_dispatch, int rank) {
  std::sort(seen.begin(), seen.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  int64_t total = 0;
  int64_t counted = 0;  // keys before this one are done
  for (const Range& range : seen) {
    for (int64_t key = std::max(range.begin, counted); key < range.end;) {
      const int64_t chunk = key / k_dispatch.chunk_size;
      const int64_t end = std::min(range.end, (chunk + 1) * k_dispatch.chunk_size);
      if (k_dispatch.rank_of_chunk[static_cast<size_t>(chunk)] != rank) total += end - key;
      key = end;
    }
    counted = std::max(counted, range.end);
  }
  return total;
}

}  // namespace

int64_t rows_lower_bound(const Mask& mask, const Dispatch& q_dispatch, const Dispatch& k_dispatch) {
  const int cp_size = q_dispatch.cp_size;
  validate_dispatch(q_dispatch, cp_size, mask.seqlen_q(), "rows_lower_bound: q_dispatch");
  validate_dispatch(k_dispatch, cp_size, mask.seqlen_k(), "rows_lower_bound: k_dispatch");
  int64_t total = 0;
  for (int rank = 0; rank < cp_size; ++rank) {
    const std::vector<int64_t> next_chunk = next_chunk_table(q_dispatch, rank);
    std::vector<Range> seen;
    for (const AttnSlice& slice : mask.slices()) append_seen(slice, q_dispatch.chunk_size, next_chunk, seen);
    total += count_remote(std::move(seen), k_dispatch, rank);
  }
  return total;
}

}  // namespace tangram
