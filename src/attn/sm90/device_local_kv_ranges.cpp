// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/device_local_kv_ranges.hpp"

#include <algorithm>
#include <vector>

namespace tangram::sm90 {

DeviceLocalKvRanges::DeviceLocalKvRanges(std::span<const LocalKvRange> local_ranges, int64_t seqlen_k) {
  const std::vector<GranuleRange> of_granule = local_ranges_of_granules(local_ranges, seqlen_k);
  for (const LocalKvRange& local_range : local_ranges) {
    if (!local_range.keys.empty()) num_rows_ = std::max(num_rows_, local_range.row + local_range.keys.size());
  }
  if (num_rows_ == 0) return;
  of_granule_ = arrays_.add(of_granule);
  arrays_.upload();
}

}  // namespace tangram::sm90
