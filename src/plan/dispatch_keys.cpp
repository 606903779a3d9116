// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Dispatch of the keys of cross attention: every chunk of keys to a rank that sees much of it, equal counts for all.
#include <algorithm>
#include <numeric>

#include "plan/dispatch.hpp"
#include "plan/runs.hpp"

namespace tangram {

Dispatch dispatch_keys(const Mask& mask, const Dispatch& q_dispatch, const DistAttnConfig& config) {
  const int cp_size = config.cp_size;
  const int64_t given = config.dispatch.chunk_size;
  const int64_t chunk_size = given > 0 ? given : finest_chunk_size(mask.seqlen_k() / cp_size);
  const size_t num_chunks = static_cast<size_t>(mask.seqlen_k() / chunk_size);
  const size_t per_rank = num_chunks / static_cast<size_t>(cp_size);
  const size_t num_ranks = static_cast<size_t>(cp_size);

  // seen[c * cp_size + r]: rows of chunk c that rank r sees.
  std::vector<int64_t> seen(num_chunks * num_ranks);
  const auto slices = cut_by_rank(mask, owned_runs(q_dispatch), cp_size);
  for (size_t r = 0; r < num_ranks; ++r) {
    for (const Range& keys : needed_keys(slices[r])) {
      for (int64_t c = keys.begin / chunk_size; c * chunk_size < keys.end; ++c) {
        seen[static_cast<size_t>(c) * num_ranks + r] += intersect(keys, {c * chunk_size, (c + 1) * chunk_size}).size();
      }
    }
  }
  // Chunks that few ranks see have the least choice and go first.
  std::vector<int64_t> total_seen(num_chunks);
  for (size_t c = 0; c < num_chunks; ++c) {
    const auto row = seen.begin() + static_cast<int64_t>(c * num_ranks);
    total_seen[c] = std::accumulate(row, row + cp_size, int64_t{0});
  }
  std::vector<size_t> order(num_chunks);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return total_seen[a] < total_seen[b]; });
  // Chunks of keys that no query sees fill up what is left.
  std::stable_partition(order.begin(), order.end(), [&](size_t c) { return total_seen[c] > 0; });

  std::vector<int> ranks(num_chunks);
  std::vector<size_t> num_assigned(num_ranks);
  for (const size_t c : order) {
    size_t best = num_ranks;
    for (size_t r = 0; r < num_ranks; ++r) {
      if (num_assigned[r] == per_rank) continue;
      const auto better = [&](size_t other) {
        const int64_t here = seen[c * num_ranks + r];
        const int64_t there = seen[c * num_ranks + other];
        return here != there ? here > there : num_assigned[r] < num_assigned[other];
      };
      if (best == num_ranks || better(best)) best = r;
    }
    ranks[c] = static_cast<int>(best);
    ++num_assigned[best];
  }
  Dispatch dispatch{cp_size, chunk_size, std::move(ranks)};
  return given > 0 ? dispatch : coarsened(dispatch);
}

}  // namespace tangram
