// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/key_stretches.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram::sm90 {

std::vector<GranuleRange> stretches_of_granules(std::span<const LocalKvRange> stretches, int64_t seqlen_k) {
  std::vector<LocalKvRange> sorted(stretches.begin(), stretches.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const LocalKvRange& a, const LocalKvRange& b) { return a.keys.begin < b.keys.begin; });
  std::vector<GranuleRange> of_granule(static_cast<size_t>((seqlen_k + kStretchGranule - 1) / kStretchGranule));
  // Granules whose last key, in a sequence that ends within one the sequence's last, is one of `keys`.
  const auto set = [&](const Range& keys, int32_t shift) {
    const int64_t end = keys.end == seqlen_k ? std::ssize(of_granule) : keys.end / kStretchGranule;
    for (int64_t granule = keys.begin / kStretchGranule; granule < end && !keys.empty(); ++granule) {
      of_granule[static_cast<size_t>(granule)] = {static_cast<int32_t>(keys.begin), static_cast<int32_t>(keys.end),
                                                  shift};
    }
  };
  int64_t free_from = 0;
  for (const LocalKvRange& stretch : sorted) {
    const Range keys = stretch.keys;
    require(free_from <= keys.begin && keys.begin <= keys.end && keys.end <= seqlen_k && stretch.row >= 0,
            "Sm90Backend::prepare_local_kv: stretches must lie in [0, {}), not overlap and begin at a row that is not "
            "negative (got [{}, {}) at row {})",
            seqlen_k, keys.begin, keys.end, stretch.row);
    set({free_from, keys.begin}, kNoStretch);
    set(keys, static_cast<int32_t>(stretch.row - keys.begin));
    free_from = keys.end;
  }
  set({free_from, seqlen_k}, kNoStretch);
  return of_granule;
}

}  // namespace tangram::sm90
