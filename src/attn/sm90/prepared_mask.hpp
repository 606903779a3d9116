// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A mask on the device, as the Hopper kernels read it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attn/sm90/arrivals.hpp"
#include "attn/sm90/backward/device_work_list.hpp"
#include "attn/sm90/key_stretches.hpp"
#include "cuda/packed_arrays.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90 {

/// What the forward pass reads of a mask: its tile list, and where parts of tiles leave their results.
struct ForwardLists {
  cuda::PackedArrays arrays;
  cuda::PackedArray items, runs, intervals;
  cuda::PackedArray groups;            ///< of gathered runs; empty for most masks
  cuda::PackedArray counters;          ///< of the kernel's scheduler, zeros between calls
  cuda::PackedArray part_rows, tiles;  ///< empty for most masks; else items are parts
  int32_t num_items = 0;
  int32_t num_part_tiles = 0;
  int64_t num_part_rows = 0;  ///< of the workspace, [rows, num_heads_q]
  int64_t total_steps = 0;    ///< key tiles of all items of one head group
  int64_t longest_steps = 0;  ///< key tiles of the longest item

  bool in_parts() const { return num_part_tiles > 0; }
  bool gathered = false;
};

/// The lists of the passes that were prepared, in device memory; what calls compute in is not the mask's. Used by one
/// call at a time (in stream order).
struct Sm90Mask final : PreparedMask {
  AttnShape shape;
  std::vector<AttnSlice> slices;
  std::optional<ForwardLists> forward;
  std::unique_ptr<backward::DeviceWorkList> backward;
  schedule::LateKeys late_keys;
  DeviceLateKeys late_keys_on_device;
  KeyStretches stretches;

  int64_t device_bytes() const override {
    const size_t lists = (forward ? forward->arrays.device_bytes() : 0) + (backward ? backward->device_bytes() : 0);
    return static_cast<int64_t>(lists + late_keys_on_device.device_bytes() + stretches.device_bytes());
  }
};

/// Throws InvalidArgument for a mask of another backend.
const Sm90Mask& as_sm90(const PreparedMask& mask);
Sm90Mask& as_sm90(PreparedMask& mask);

/// The stretches of a call that gives these other tensors or, empty ones, none. Throws InvalidArgument, naming
/// `function`, unless they are like k and v and have the rows.
StretchParams stretch_params(const char* function, const Sm90Mask& mask, const ConstTensorView& k,
                             const ConstTensorView& v);

}  // namespace tangram::sm90
