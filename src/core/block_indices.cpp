// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks from the indices of dynamic sparse attention.
#include <algorithm>

#include "core/require.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {

namespace {

constexpr const char* kName = "mask_from_block_indices";

int64_t count_blocks(int64_t seqlen, int64_t block) { return (seqlen + block - 1) / block; }

void require_shapes(const BlockIndices& blocks) {
  require(blocks.block_q > 0 && blocks.block_k > 0, "{}: block sizes must be positive (got block_q={}, block_k={})",
          kName, blocks.block_q, blocks.block_k);
  constexpr int64_t kMaxSeqlen = int64_t{1} << 31;
  require(
      0 <= blocks.seqlen_q && blocks.seqlen_q <= kMaxSeqlen && 0 <= blocks.seqlen_k && blocks.seqlen_k <= kMaxSeqlen,
      "{}: sequence lengths must lie in [0, 2^31] (got seqlen_q={}, seqlen_k={})", kName, blocks.seqlen_q,
      blocks.seqlen_k);
  const int64_t num_rows = count_blocks(blocks.seqlen_q, blocks.block_q);
  const int64_t count = static_cast<int64_t>(blocks.indices.size());
  if (blocks.offsets.empty()) {
    require(num_rows == 0 ? count == 0 : count % num_rows == 0,
            "{}: indices without offsets must be a rectangle of {} query blocks (got {} indices)", kName, num_rows,
            count);
    return;
  }
  require(static_cast<int64_t>(blocks.offsets.size()) == num_rows + 1,
          "{}: offsets must have an entry for each of the {} query blocks and one more (got {})", kName, num_rows,
          blocks.offsets.size());
  require(blocks.offsets.front() == 0 && blocks.offsets.back() == count,
          "{}: offsets must start at 0 and end at the number of indices, {} (got {} and {})", kName, count,
          blocks.offsets.front(), blocks.offsets.back());
  for (size_t i = 1; i < blocks.offsets.size(); ++i) {
    require(blocks.offsets[i - 1] <= blocks.offsets[i], "{}: offsets must not decrease (got offsets[{}]={} after {})",
            kName, i, blocks.offsets[i], blocks.offsets[i - 1]);
  }
}

// The indices of a query block without padding.
std::span<const int32_t> row_of(const BlockIndices& blocks, int64_t row, int64_t num_rows) {
  if (!blocks.offsets.empty()) {
    const size_t begin = static_cast<size_t>(blocks.offsets[static_cast<size_t>(row)]);
    return blocks.indices.subspan(begin, static_cast<size_t>(blocks.offsets[static_cast<size_t>(row) + 1]) - begin);
  }
  const size_t width = blocks.indices.size() / static_cast<size_t>(num_rows);
  const std::span<const int32_t> all = blocks.indices.subspan(static_cast<size_t>(row) * width, width);
  const auto padding = std::find(all.begin(), all.end(), -1);
  require(std::all_of(padding, all.end(), [](int32_t index) { return index == -1; }),
          "{}: padding must stand at the end (got another index after -1 in query block {})", kName, row);
  return all.first(static_cast<size_t>(padding - all.begin()));
}

// Runs of neighbouring key blocks, in rows of keys.
void find_runs(const BlockIndices& blocks, int64_t row, std::vector<int32_t>& sorted, std::vector<Range>& runs) {
  if (!std::is_sorted(sorted.begin(), sorted.end())) std::sort(sorted.begin(), sorted.end());
  const int64_t num_columns = count_blocks(blocks.seqlen_k, blocks.block_k);
  runs.clear();
  int64_t last = -1;
  for (const int64_t index : sorted) {
    require(0 <= index && index < num_columns, "{}: indices must lie in [0, {}) (got {} in query block {})", kName,
            num_columns, index, row);
    require(index != last, "{}: indices must not repeat (got {} twice in query block {})", kName, index, row);
    const Range keys{index * blocks.block_k, std::min((index + 1) * blocks.block_k, blocks.seqlen_k)};
    if (!runs.empty() && last + 1 == index) {
      runs.back().end = keys.end;
    } else {
      runs.push_back(keys);
    }
    last = index;
  }
}

}  // namespace

Mask mask_from_block_indices(const BlockIndices& blocks) {
  require_shapes(blocks);
  const int64_t num_rows = count_blocks(blocks.seqlen_q, blocks.block_q);
  std::vector<AttnSlice> slices;
  std::vector<int32_t> sorted;
  std::vector<Range> runs;
  std::vector<size_t> above, open;  // slices that end in the row above, and in this one, by key
  for (int64_t row = 0; row < num_rows; ++row) {
    const std::span<const int32_t> indices = row_of(blocks, row, num_rows);
    sorted.assign(indices.begin(), indices.end());
    find_runs(blocks, row, sorted, runs);
    const Range queries{row * blocks.block_q, std::min((row + 1) * blocks.block_q, blocks.seqlen_q)};
    open.clear();
    size_t at = 0;
    for (const Range& keys : runs) {
      while (at < above.size() && slices[above[at]].k_range < keys) ++at;
      if (at < above.size() && slices[above[at]].k_range == keys) {
        slices[above[at]].q_range.end = queries.end;
        open.push_back(above[at]);
        continue;
      }
      open.push_back(slices.size());
      slices.push_back(AttnSlice::full(queries, keys));
      if (blocks.causal) slices.back().max_diag = blocks.seqlen_k - blocks.seqlen_q;
    }
    std::swap(above, open);
  }
  return Mask(blocks.seqlen_q, blocks.seqlen_k, std::move(slices));
}

}  // namespace tangram
