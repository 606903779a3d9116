// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A GPU as those see it who choose the order in which its kernels work.
#pragma once

#include <cstdint>

#include "tangram/machine.hpp"

namespace tangram {

/// Where a device is there it is asked (src/attn/sm90/gpu_model.hpp). Rates of kernels and links are those of the
/// default machine, since an order needs no more than their ratios.
struct GpuModel {
  int multiprocessors = h200::kMultiprocessors;
  int64_t l2_bytes = h200::kL2Bytes;
  double memory_bytes_per_s = h200::kMemoryBytesPerS;

  /// As an H100's, of 3.35 TB/s at most, is beside an H200's: that backward kernels wait for it.
  bool has_slow_memory() const { return memory_bytes_per_s < 0.85 * h200::kMemoryBytesPerS; }

  friend bool operator==(const GpuModel&, const GpuModel&) = default;
};

/// Seconds of a multiprocessor for a whole tile of `cells` of one query head, `flops` each.
inline double tile_seconds(const KernelModel& kernel, double cells, double flops) {
  return cells * flops * h200::kMultiprocessors / kernel.flops_per_s;
}

/// What the L2 cache keeps of what a launch reads again and again: a quarter, because it holds two copies of much.
inline int64_t kept_in_l2(const GpuModel& gpu) { return gpu.l2_bytes / 4; }

}  // namespace tangram
