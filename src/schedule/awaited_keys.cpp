// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/awaited_keys.hpp"

#include <algorithm>
#include <bit>

#include "core/require.hpp"

namespace tangram::schedule {

AwaitedKeys::AwaitedKeys(std::span<const KeyReadyFlag> ready_flags, int64_t seqlen_k) {
  constexpr size_t kMostFlags = 64;
  needed_.resize(static_cast<size_t>((seqlen_k + kReadyGranule - 1) / kReadyGranule));
  for (const KeyReadyFlag& ready_flag : ready_flags) {
    if (ready_flag.keys.empty()) continue;
    require(0 <= ready_flag.keys.begin && ready_flag.keys.end <= seqlen_k && ready_flag.flag >= 0,
            "prepare_ready_flags: keys must lie in [0, {}) with a flag that is not negative (got [{}, {}), flag {})",
            seqlen_k, ready_flag.keys.begin, ready_flag.keys.end, ready_flag.flag);
    const auto at = std::find(flags_.begin(), flags_.end(), ready_flag.flag);
    const auto bit = static_cast<size_t>(at - flags_.begin());
    if (at == flags_.end()) flags_.push_back(ready_flag.flag);
    require(flags_.size() <= kMostFlags, "prepare_ready_flags: there must be at most {} different flags (got more)",
            kMostFlags);
    for (int64_t granule = ready_flag.keys.begin / kReadyGranule; granule * kReadyGranule < ready_flag.keys.end;
         ++granule) {
      needed_[static_cast<size_t>(granule)] |= uint64_t{1} << bit;
    }
  }
}

int AwaitedKeys::turn(int64_t begin, int64_t end) const {
  uint64_t needed = 0;
  for (int64_t granule = begin / kReadyGranule; !empty() && granule * kReadyGranule < end; ++granule) {
    needed |= needed_[static_cast<size_t>(granule)];
  }
  return std::bit_width(needed);
}

int64_t AwaitedKeys::num_keys() const {
  return kReadyGranule * std::count_if(needed_.begin(), needed_.end(), [](uint64_t bits) { return bits != 0; });
}

}  // namespace tangram::schedule
