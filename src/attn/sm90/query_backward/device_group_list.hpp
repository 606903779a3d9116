// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the backward kernels for gathered keys read of one mask, on the device. What a call computes in is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "attn/sm90/query_backward/params.hpp"
#include "cuda/packed_arrays.hpp"
#include "schedule/group_items.hpp"
#include "schedule/work_list.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/slice.hpp"

namespace tangram::sm90::query_backward {

/// Uploaded on construction: calls allocate nothing.
class DeviceGroupList {
 public:
  /// Throws CudaError.
  DeviceGroupList(const schedule::GroupList& list, const AttnShape& shape);

  /// Fills in the pointers and sizes that come from the list and the shape, and those of `workspace`:
  /// workspace_bytes(), of any content, for one call at a time.
  void fill(Params& params, EdgeParams& edge, void* workspace) const;
  size_t workspace_bytes() const;

  /// Of all head groups.
  int64_t num_items() const { return int64_t{num_items_} * num_head_groups_; }
  size_t device_bytes() const { return lists_.device_bytes(); }

 private:
  AttnShape shape_;
  int32_t num_items_ = 0;
  int32_t num_head_groups_ = 1;  // each of which has all items
  int64_t total_steps_ = 0, longest_steps_ = 0;
  cuda::PackedArrays lists_;
  cuda::PackedArray items_, groups_, masks_;
};

/// The list for a mask, or masks of as many groups of heads, whose calls are predicted to end sooner with these kernels
/// than with those that walk `work`; null for others, for other head dimensions, and where schedule::group_items has
/// none.
std::unique_ptr<DeviceGroupList> choose_groups(std::span<const std::span<const AttnSlice>> masks,
                                               const AttnShape& shape, const schedule::WorkList& work);

/// Whether choose_groups is likely to find a list: blocks of whole groups of keys that fill tiles badly. O(slices).
bool is_scattered(std::span<const AttnSlice> slices, const AttnShape& shape);

}  // namespace tangram::sm90::query_backward
