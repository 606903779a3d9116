// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// How the thread that issues TMA loads learns where a tile of keys lies.
#pragma once

#include "schedule/local_kv_table.hpp"

namespace tangram::sm90 {

__device__ __forceinline__ bool holds(const int4& local_range, int32_t first_key, int32_t num_keys) {
  return local_range.x <= first_key && first_key + num_keys <= local_range.y;
}

/// The row of the other tensors at which keys [first_key, first_key + num_keys) begin, or a negative number: they are
/// rows of k and v.
__device__ __forceinline__ int32_t local_kv_row(const LocalKvParams& params, int32_t first_key, int32_t num_keys) {
  if (params.of_granule == nullptr) return -1;
  const int4 local_range = __ldg(reinterpret_cast<const int4*>(params.of_granule) + first_key / kLocalKvGranule);
  return holds(local_range, first_key, num_keys) ? first_key + local_range.z : -1;
}

/// Row of local K/V for consecutive tiles, most of which lie in the same range as the last one. `last`, in shared
/// memory, is the calling thread's own, and begins as {0, 0, 0, 0}.
__device__ __forceinline__ int32_t local_kv_row(const LocalKvParams& params, int4& last, int32_t first_key,
                                                int32_t num_keys) {
  if (params.of_granule == nullptr) return -1;
  if (!holds(last, first_key, num_keys)) {
    last = __ldg(reinterpret_cast<const int4*>(params.of_granule) + first_key / kLocalKvGranule);
    if (!holds(last, first_key, num_keys)) return -1;
  }
  return first_key + last.z;
}

}  // namespace tangram::sm90
