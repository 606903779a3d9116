// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Which keys of a mask a kernel may read from other tensors than k and v. Plain data for host and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tangram/local_kv_range.hpp"

namespace tangram {

/// A kernel looks up its tile of keys by the granule in which the tile begins.
inline constexpr int kLocalKvGranule = 16;

/// Offset of keys that lie in no range: their rows are negative.
inline constexpr int32_t kNoLocalRange = INT32_MIN;

/// Keys [begin, end) are rows [begin + shift, end + shift) of the other tensors, or, with kNoLocalRange, of k and v.
struct alignas(16) GranuleRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t shift = kNoLocalRange;
  int32_t reserved = 0;

  friend bool operator==(const GranuleRange&, const GranuleRange&) = default;
};

/// Range of the last key of every granule, or the gap between two ranges. The lookup of a tile inside a range fails
/// only if it begins less than a granule before the range's end: both tensors must hold such keys. Throws
/// InvalidArgument for ranges that are not in [0, seqlen_k) or overlap.
std::vector<GranuleRange> local_ranges_of_granules(std::span<const LocalKvRange> local_ranges, int64_t seqlen_k);

/// Local K/V table in host memory, aligned to 16, for calls whose ranges change between launches
/// (AttnForwardArgs::local_kv_table), and its bytes for `seqlen_k` keys.
int64_t local_kv_table_bytes(int64_t seqlen_k);
void write_local_kv_table(std::span<const LocalKvRange> local_ranges, int64_t seqlen_k, std::byte* to);

/// A kernel's view. `of_granule` null: all keys are read from k and v.
struct LocalKvParams {
  const GranuleRange* of_granule;
};

}  // namespace tangram
