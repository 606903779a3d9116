// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A mask on the device, as the Hopper kernels read it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attn/sm90/arrivals.hpp"
#include "attn/sm90/backward/plan.hpp"
#include "attn/sm90/key_stretches.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90 {

/// What a mask whose query tiles are cut into parts has besides: where parts leave their results.
struct ForwardParts {
  cuda::DeviceBuffer part_rows, tiles, out, lse;
};

/// Tile lists and counters in device memory, uploaded once. Used by one call at a time (in stream order).
struct Sm90Mask final : PreparedMask {
  AttnShape shape;
  std::vector<AttnSlice> slices;
  int num_sms = 0;
  int64_t l2_bytes = 0;
  int32_t num_items = 0;
  int64_t total_steps = 0;    ///< key tiles of all items of one head group
  int64_t longest_steps = 0;  ///< key tiles of the longest item
  cuda::DeviceBuffer items;
  cuda::DeviceBuffer runs;
  cuda::DeviceBuffer intervals;
  cuda::DeviceBuffer counters;
  std::unique_ptr<ForwardParts> parts;  ///< null for most masks; else items are parts
  LateKeys late_keys;
  KeyStretches stretches;
  std::unique_ptr<backward::Plan> backward;
};

/// The stretches of a call that gives these other tensors or, empty ones, none. Throws InvalidArgument, naming
/// `function`, unless they are like k and v and have the rows.
StretchParams stretch_params(const char* function, const Sm90Mask& mask, const ConstTensorView& k,
                             const ConstTensorView& v);

}  // namespace tangram::sm90
