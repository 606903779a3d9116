// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What does not change about a device, asked for once.
#pragma once

#include <cstdint>

namespace tangram::cuda {

struct DeviceInfo {
  int multiprocessors = 0;
  int64_t l2_bytes = 0;
  double memory_bytes_per_s = 0;  ///< of its pins
  int major = 0;                  ///< of the compute capability
  int minor = 0;

  /// Blocks of 256 threads that keep its memory busy, where each walks over what there is to move.
  int64_t memory_blocks() const { return int64_t{8} * multiprocessors; }
};

/// Properties of the current device, read once. Throws CudaError.
const DeviceInfo& info_of_current_device();

}  // namespace tangram::cuda
