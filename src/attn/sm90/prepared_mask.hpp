// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A mask on the device, as the Hopper kernels read it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attn/sm90/backward/device_work_list.hpp"
#include "attn/sm90/block_buffer.hpp"
#include "attn/sm90/device_awaited_keys.hpp"
#include "attn/sm90/device_local_kv_ranges.hpp"
#include "attn/sm90/list_buffer.hpp"
#include "attn/sm90/query_backward/device_group_list.hpp"
#include "cuda/packed_arrays.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90 {

/// Runs a work tile from which on kernels that fetch them ahead are faster: 1.02 times with 7 of 256 keys, 1.09 with 14
/// of 128, 0.99 with the one or two of packed documents (docs/devlog/2026-11-22-runs-of-keys.md).
inline constexpr size_t kManyRuns = 4;
inline bool has_many_runs(size_t num_work_tiles, size_t num_runs) { return num_runs >= kManyRuns * num_work_tiles; }

/// What the forward pass reads of a mask: its tile list, and where parts of tiles leave their results.
struct ForwardLists {
  cuda::PackedArrays arrays;
  cuda::PackedArray work_tiles, runs, intervals;
  cuda::PackedArray groups;            ///< of gathered runs; empty for most masks
  cuda::PackedArray counters;          ///< of the kernel's scheduler, zeros between calls
  cuda::PackedArray part_rows, tiles;  ///< empty for most masks; else work tiles are parts
  cuda::PackedArray work_tile_groups;  ///< of masks of head groups (schedule::HeadLists), else empty
  cuda::PackedArray part_heads;        ///< of these in parts: of each of `tiles`
  int32_t num_work_tiles = 0;
  int32_t num_part_tiles = 0;
  int64_t num_part_rows = 0;  ///< of the workspace, [rows, num_heads_q]
  int64_t total_steps = 0;    ///< key tiles of all work tiles of one head group
  int64_t longest_steps = 0;  ///< key tiles of the longest work tile

  bool in_parts() const { return num_part_tiles > 0; }
  bool gathered = false;
  bool aligned = false;    ///< with `gathered`: of ForwardWorkTiles::kAligned
  bool many_runs = false;  ///< work tiles have so many that a kernel fetches them ahead (kManyRuns)
};

/// The lists of the passes that were prepared, in device memory; what calls compute in is not the mask's. Used by one
/// call at a time (in stream order).
struct Sm90Mask final : PreparedMask {
  AttnShape shape;
  std::vector<AttnSlice> slices;
  std::vector<std::vector<AttnSlice>> head_slices;  ///< in place of `slices`, of masks of head groups
  std::optional<ForwardLists> forward;
  std::unique_ptr<backward::DeviceWorkList> backward;  ///< of all calls, unless deterministic ones have their own
  std::unique_ptr<backward::DeviceWorkList> deterministic_backward;
  std::unique_ptr<query_backward::DeviceGroupList> backward_groups;  ///< null, or for calls that its kernels take
  bool backward_is_default = false;           ///< `backward` is of calls that are not deterministic
  std::unique_ptr<ListBuffer> buffer;         ///< in place of both, for masks set later
  std::unique_ptr<BlockBuffer> block_buffer;  ///< likewise, for masks of small blocks
  schedule::AwaitedKeys awaited_keys;
  DeviceAwaitedKeys awaited_keys_on_device;
  DeviceLocalKvRanges local_ranges;

  /// Before each call is put on `stream`, of what both passes read.
  void before_call(cudaStream_t stream) const {
    awaited_keys_on_device.before_call(stream);
    local_ranges.before_call(stream);
  }
  /// The lists of such calls; null: not prepared.
  const backward::DeviceWorkList* backward_of(bool deterministic) const {
    if (!deterministic) return backward.get();
    return deterministic_backward != nullptr || backward_is_default ? deterministic_backward.get() : backward.get();
  }
  void set_backward(std::unique_ptr<backward::DeviceWorkList> lists, BackwardCalls calls) {
    if (calls == BackwardCalls::kDeterministic) {
      deterministic_backward = std::move(lists);
    } else {
      backward = std::move(lists);
      backward_is_default = calls == BackwardCalls::kDefault;
    }
  }
  bool is_buffer() const { return buffer != nullptr || block_buffer != nullptr; }
  /// Of a buffer.
  const MaskCapacity& capacity() const { return buffer != nullptr ? buffer->capacity() : block_buffer->capacity(); }
  int64_t host_bytes() const override {
    return static_cast<int64_t>((buffer ? buffer->host_bytes() : 0) + (block_buffer ? block_buffer->host_bytes() : 0));
  }
  bool is_held_by_graphs() const override {
    return (buffer && buffer->is_held_by_graphs()) || (block_buffer && block_buffer->is_held_by_graphs());
  }
  int64_t device_bytes() const override {
    const size_t lists = (forward ? forward->arrays.device_bytes() : 0) + (backward ? backward->device_bytes() : 0) +
                         (deterministic_backward ? deterministic_backward->device_bytes() : 0) +
                         (backward_groups ? backward_groups->device_bytes() : 0);
    return static_cast<int64_t>(lists + (buffer ? buffer->device_bytes() : 0) +
                                (block_buffer ? block_buffer->device_bytes() : 0) +
                                awaited_keys_on_device.device_bytes() + local_ranges.device_bytes());
  }
};

/// Throws InvalidArgument for a mask of another backend.
const Sm90Mask& as_sm90(const PreparedMask& mask);
Sm90Mask& as_sm90(PreparedMask& mask);

/// Throws InvalidArgument, naming `function`, unless the list is of Sm90Backend::tile_shape and the shape's sequences.
void check_tiles(const char* function, const TileList& tiles, const AttnShape& shape, const TileShape& tile);
/// The same unless the list is one of the transposed mask, of the shape that backward kernels want.
void check_transposed_tiles(const char* function, const AttnShape& shape, const TileList& tiles);

/// Throws InvalidArgument, naming `function`, for a buffer without a mask, or for the `other` pass alone, and for a
/// mask that the GPU has refused.
void check_buffer(const char* function, const Sm90Mask& mask, AttnPasses other);

/// The ranges of a call that gives these other tensors or, empty ones, none: of its `table` or, null, of the mask.
/// Throws InvalidArgument, naming `function`, unless they are like k and v and have the rows of the mask's ranges.
LocalKvParams local_kv_params(const char* function, const Sm90Mask& mask, const ConstTensorView& k,
                              const ConstTensorView& v, const void* table);

}  // namespace tangram::sm90
