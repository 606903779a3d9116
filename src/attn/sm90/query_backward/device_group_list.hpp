// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the backward kernels for gathered keys read of one mask, on the device. What a call computes in is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "attn/sm90/query_backward/params.hpp"
#include "cuda/packed_arrays.hpp"
#include "schedule/group_work_tiles.hpp"
#include "schedule/work_list.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/slice.hpp"

namespace tangram::sm90::query_backward {

/// What kernels walk, in device memory.
struct GroupListView {
  const GroupWorkTile* work_tiles = nullptr;
  const int32_t* groups = nullptr;
  const schedule::RowBits* masks = nullptr;
  int32_t num_work_tiles = 0;
  int32_t num_head_groups = 1;  ///< each of which has all work tiles; 1 where work tiles name theirs
  int32_t groups_per_section = 1;

  /// Of all head groups.
  int64_t num_all_work_tiles() const { return int64_t{num_work_tiles} * num_head_groups; }
};

/// What a call with masks of the shape computes in.
size_t workspace_bytes(const AttnShape& shape);

/// Fills in the pointers and sizes that come from the lists and the shape, and those of `workspace`: of
/// workspace_bytes(), of any content, for one call at a time.
void fill(Params& params, PrePostParams& pre_post, const GroupListView& lists, const AttnShape& shape, void* workspace);

/// Uploaded on construction: calls allocate nothing.
class DeviceGroupList {
 public:
  /// Throws CudaError.
  DeviceGroupList(const schedule::GroupList& list, const AttnShape& shape);

  GroupListView view() const;
  /// Before each call that reads the list is put on `stream`. Throws CudaError.
  void before_call(cudaStream_t stream) const { lists_.before_call(stream); }
  size_t workspace_bytes() const { return query_backward::workspace_bytes(shape_); }
  size_t device_bytes() const { return lists_.device_bytes(); }

 private:
  AttnShape shape_;
  int32_t num_work_tiles_ = 0;
  int32_t num_head_groups_ = 1;  // each of which has all work tiles
  int64_t total_steps_ = 0, longest_steps_ = 0;
  cuda::PackedArrays lists_;
  cuda::PackedArray work_tiles_, groups_, masks_;
};

/// Steps of the KV-stationary kernels, of all heads.
double kv_stationary_steps(const schedule::WorkList& work);

/// The list for a mask, or masks of as many groups of heads, whose calls are predicted to end sooner with these kernels
/// than with kernels that take so many steps; nothing for others, for other head dimensions, and where
/// schedule::group_work_tiles has none.
std::optional<schedule::GroupList> choose_groups(std::span<const std::span<const AttnSlice>> masks,
                                                 const AttnShape& shape, double kv_stationary_steps);

/// The same without a list of work, only where these kernels are clearly faster: steps are counted as if tiles began at
/// multiples of their rows, and tiles that follow the mask may be fewer. O(slices) for most masks, else of the tiles
/// that slices touch.
std::optional<schedule::GroupList> choose_groups_early(std::span<const std::span<const AttnSlice>> masks,
                                                       const AttnShape& shape);
/// Whether that may find one. O(slices).
bool may_choose_groups(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape);

/// Whether choose_groups is likely to find a list: blocks of whole groups of keys that fill tiles badly. O(slices).
bool is_scattered(std::span<const AttnSlice> slices, const AttnShape& shape);

}  // namespace tangram::sm90::query_backward
