// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A GPU as those see it who choose the order in which its kernels work, and among kernels.
#pragma once

#include <cstdint>

#include "tangram/machine.hpp"

namespace tangram {

/// Sizes are those of the device. Rates are constants of a backend and a device, never measured when a process starts.
/// Schedules, and so the order of sums, depend on them: results would differ from one start to the next.
struct GpuModel {
  int multiprocessors = h200::kMultiprocessors;
  int64_t l2_bytes = h200::kL2Bytes;
  double memory_bytes_per_s = h200::kMemoryBytesPerS;
  /// Rates of attention kernels, on a device of rated_multiprocessors.
  int rated_multiprocessors = h200::kMultiprocessors;
  double forward_flops_per_s = h200::kForward.flops_per_s;
  double backward_flops_per_s = h200::kBackward.flops_per_s;
  double stream_bytes_per_s = h200::kStreamBytesPerS;       ///< of a kernel that only reads and writes memory
  double link_bytes_per_s = h200::kInside.bytes_per_s;      ///< of rows that come from another device
  double fast_memory_bytes_per_s = h200::kMemoryBytesPerS;  ///< that of a device whose kernels rarely wait for it

  /// Whether backward kernels wait for memory: true for an H100 (3.35 TB/s at most), false for an H200.
  bool has_slow_memory() const { return memory_bytes_per_s < 0.85 * fast_memory_bytes_per_s; }
  /// Seconds of a multiprocessor for a whole tile of `cells` of one query head, `flops` each.
  double forward_tile_seconds(double cells, double flops) const {
    return cells * flops * rated_multiprocessors / forward_flops_per_s;
  }
  double backward_tile_seconds(double cells, double flops) const {
    return cells * flops * rated_multiprocessors / backward_flops_per_s;
  }

  friend bool operator==(const GpuModel&, const GpuModel&) = default;
};

/// Bytes that stay in the L2 cache if a launch rereads them: a quarter of it, because it holds two copies of much data.
inline int64_t kept_in_l2(const GpuModel& gpu) { return gpu.l2_bytes / 4; }

}  // namespace tangram
