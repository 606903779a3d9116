// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/device_local_kv_ranges.hpp"

namespace tangram::sm90 {

DeviceLocalKvRanges::DeviceLocalKvRanges(const std::vector<GranuleRange>& of_granule, int64_t num_rows)
    : num_rows_(num_rows) {
  if (num_rows_ == 0) return;
  of_granule_ = arrays_.add(of_granule);
  arrays_.upload();
}

}  // namespace tangram::sm90
