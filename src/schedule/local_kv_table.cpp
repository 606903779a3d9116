// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/local_kv_table.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram {

std::vector<GranuleRange> local_ranges_of_granules(std::span<const LocalKvRange> local_ranges, int64_t seqlen_k) {
  std::vector<LocalKvRange> sorted(local_ranges.begin(), local_ranges.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const LocalKvRange& a, const LocalKvRange& b) { return a.keys.begin < b.keys.begin; });
  std::vector<GranuleRange> of_granule(static_cast<size_t>((seqlen_k + kLocalKvGranule - 1) / kLocalKvGranule));
  // Granules whose last key, in a sequence that ends within one the sequence's last, is one of `keys`.
  const auto set = [&](const Range& keys, int32_t shift) {
    const int64_t end = keys.end == seqlen_k ? std::ssize(of_granule) : keys.end / kLocalKvGranule;
    for (int64_t granule = keys.begin / kLocalKvGranule; granule < end && !keys.empty(); ++granule) {
      of_granule[static_cast<size_t>(granule)] = {static_cast<int32_t>(keys.begin), static_cast<int32_t>(keys.end),
                                                  shift};
    }
  };
  int64_t free_from = 0;
  for (const LocalKvRange& local_range : sorted) {
    const Range keys = local_range.keys;
    require(free_from <= keys.begin && keys.begin <= keys.end && keys.end <= seqlen_k && local_range.row >= 0,
            "local_ranges: ranges must lie in [0, {}), not overlap and begin at a row that is not "
            "negative (got [{}, {}) at row {})",
            seqlen_k, keys.begin, keys.end, local_range.row);
    set({free_from, keys.begin}, kNoLocalRange);
    set(keys, static_cast<int32_t>(local_range.row - keys.begin));
    free_from = keys.end;
  }
  set({free_from, seqlen_k}, kNoLocalRange);
  return of_granule;
}

int64_t local_kv_table_bytes(int64_t seqlen_k) {
  return (seqlen_k + kLocalKvGranule - 1) / kLocalKvGranule * static_cast<int64_t>(sizeof(GranuleRange));
}

void write_local_kv_table(std::span<const LocalKvRange> local_ranges, int64_t seqlen_k, std::byte* to) {
  const std::vector<GranuleRange> table = local_ranges_of_granules(local_ranges, seqlen_k);
  std::copy(table.begin(), table.end(), reinterpret_cast<GranuleRange*>(to));
}

}  // namespace tangram
