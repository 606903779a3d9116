// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// How the thread that issues TMA loads learns where a tile of keys lies.
#pragma once

#include "attn/sm90/key_stretches.hpp"

namespace tangram::sm90 {

/// The row of the other tensors at which keys [first_key, first_key + num_keys) begin, or -1: they are rows of k and v.
__device__ __forceinline__ int32_t row_elsewhere(const StretchParams& params, int32_t first_key, int32_t num_keys) {
  if (params.of_granule == nullptr) return -1;
  const int4 stretch = __ldg(reinterpret_cast<const int4*>(params.of_granule) + first_key / kStretchGranule);
  return stretch.x <= first_key && first_key + num_keys <= stretch.y ? first_key + stretch.z : -1;
}

}  // namespace tangram::sm90
