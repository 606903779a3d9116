// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/device_key_stretches.hpp"

#include <algorithm>
#include <vector>

namespace tangram::sm90 {

DeviceKeyStretches::DeviceKeyStretches(std::span<const LocalKvRange> stretches, int64_t seqlen_k) {
  const std::vector<GranuleRange> of_granule = stretches_of_granules(stretches, seqlen_k);
  for (const LocalKvRange& stretch : stretches) {
    if (!stretch.keys.empty()) num_rows_ = std::max(num_rows_, stretch.row + stretch.keys.size());
  }
  if (num_rows_ == 0) return;
  of_granule_ = arrays_.add(of_granule);
  arrays_.upload();
}

}  // namespace tangram::sm90
