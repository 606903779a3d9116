// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// RankScratch: the device memory in which one pass of a rank computes, laid out anew for each call.
#pragma once

#include <cstdint>

#include "tangram/attention.hpp"
#include "tangram/tensor.hpp"

namespace tangram::device {

struct DeviceRank;

/// Contiguous tensors; those that a pass does not need have no rows.
struct RankScratch {
  TensorView own_k, own_v;        // K/V buffer where there is no DevicePass that has one
  TensorView out_sum;             // float32 [q rows, heads, head_dim_v]
  TensorView dq_sum;              // float32 [q rows, heads, head_dim]
  TensorView dk_part, dv_part;    // float32 [kv rows, ...]
  TensorView dk_local, dv_local;  // [k shard rows, ...]: the own part in shard order
  AttnWorkspace attention;        // of one kernel call at a time
  int64_t bytes = 0;              // of all
};

/// In `workspace`, aligned to 256 bytes, or, if that is null, to find out how many bytes it must have.
RankScratch place_forward(const DeviceRank& rank, void* workspace);
RankScratch place_backward(const DeviceRank& rank, void* workspace);

}  // namespace tangram::device
