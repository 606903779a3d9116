// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How a mask meets the tiles of a kernel: what KernelModel turns into time.
#pragma once

#include <span>

#include "tangram/machine.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// Cells as a kernel meets them, for one query head.
struct KernelWork {
  double area = 0;    // visible
  double issued = 0;  // of the tiles that are computed
  double cut = 0;     // of the tiles that a diagonal crosses
  double items = 0;
  double longest = 0;  // cells of the longest work tile

  KernelWork& operator+=(const KernelWork& other);
};
/// Closed form: O(1) a slice, whatever its size.
KernelWork count_work(const AttnSlice& slice, const KernelModel& kernel);
KernelWork count_work(std::span<const AttnSlice> slices, const KernelModel& kernel);

/// KernelWork that one call over `keys` key rows does: slices that see the same key rows share their work tiles.
KernelWork of_one_call(KernelWork work, double keys, const KernelModel& kernel);

/// How a call meets a machine.
struct CallSize {
  double num_heads = 1;
  double flops = 0;  ///< of a visible cell of one head
  int workers = 1;
  double share = 1;  ///< of the device that the call has
};
/// Seconds of one kernel call over `work`, which is of one head.
double call_seconds(const KernelModel& kernel, const KernelWork& work, const CallSize& size);

}  // namespace tangram
