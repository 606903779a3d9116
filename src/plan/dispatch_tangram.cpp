// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Our dispatch. Chunks are brought into an order from heavy to light that keeps what belongs together side by side;
// then every rank takes a run from the heavy end and a run from the light end whose areas add up to the mean.
#include <algorithm>
#include <numeric>

#include "plan/chunk_areas.hpp"
#include "plan/dispatch.hpp"

namespace tangram {

namespace {

// Query rows that no slice connects with others, such as a document.
std::vector<Range> row_blocks(std::span<const AttnSlice> slices) {
  std::vector<Range> blocks;
  for (const AttnSlice& slice : slices) {  // sorted by first row
    if (!blocks.empty() && slice.q_range.begin < blocks.back().end) {
      blocks.back().end = std::max(blocks.back().end, slice.q_range.end);
    } else {
      blocks.push_back(slice.q_range);
    }
  }
  return blocks;
}

struct Block {
  int64_t first_chunk = 0;
  int64_t num_chunks = 0;
  double density = 0;
};

// Takes runs from both ends of `order` so that every rank gets `per_rank` chunks and about the mean area.
std::vector<int> deal_from_both_ends(const std::vector<int>& order, const std::vector<int64_t>& areas, int cp_size) {
  const size_t num_chunks = order.size();
  const size_t per_rank = num_chunks / static_cast<size_t>(cp_size);
  std::vector<int64_t> prefix(num_chunks + 1);
  for (size_t i = 0; i < num_chunks; ++i) prefix[i + 1] = prefix[i] + areas[static_cast<size_t>(order[i])];
  std::vector<int> ranks(num_chunks);
  size_t front = 0;
  size_t back = num_chunks;
  for (int rank = 0; rank < cp_size; ++rank) {
    const int64_t goal = (prefix[back] - prefix[front]) / (cp_size - rank);
    size_t best = 0;
    int64_t best_error = -1;
    for (size_t heavy = 0; heavy <= per_rank; ++heavy) {
      const int64_t area = prefix[front + heavy] - prefix[front] + prefix[back] - prefix[back - (per_rank - heavy)];
      const int64_t error = std::abs(area - goal);
      if (best_error < 0 || error < best_error) {
        best = heavy;
        best_error = error;
      }
    }
    for (size_t i = front; i < front + best; ++i) ranks[static_cast<size_t>(order[i])] = rank;
    for (size_t i = back - (per_rank - best); i < back; ++i) ranks[static_cast<size_t>(order[i])] = rank;
    front += best;
    back -= per_rank - best;
  }
  return ranks;
}

}  // namespace

Dispatch dispatch_tangram(const Mask& mask, const DistAttnConfig& config, int64_t chunk_size) {
  const int64_t num_chunks = mask.seqlen_q() / chunk_size;
  const std::vector<int64_t> areas = chunk_areas(mask.slices(), chunk_size, num_chunks);
  std::vector<Block> blocks;
  int64_t next = 0;
  for (const Range& rows : row_blocks(mask.slices())) {
    // A chunk over a border goes with the block before it.
    const int64_t end = (rows.end + chunk_size - 1) / chunk_size;
    if (end <= next) continue;
    Block block{next, end - next, 0};
    int64_t area = 0;
    for (int64_t c = next; c < end; ++c) area += areas[static_cast<size_t>(c)];
    block.density = static_cast<double>(area) / static_cast<double>(end - next);
    blocks.push_back(block);
    next = end;
  }
  if (next < num_chunks) blocks.push_back({next, num_chunks - next, 0});
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.density > b.density; });
  std::vector<int> order;
  order.reserve(static_cast<size_t>(num_chunks));
  for (const Block& block : blocks) {
    for (int64_t i = block.num_chunks; i-- > 0;) order.push_back(static_cast<int>(block.first_chunk + i));
  }
  return {config.cp_size, chunk_size, deal_from_both_ends(order, areas, config.cp_size)};
}

}  // namespace tangram
