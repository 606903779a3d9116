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
  double longest = 0;  // cells of the longest item

  KernelWork& operator+=(const KernelWork& other);
};
/// Closed form: O(1) a slice, whatever its size.
KernelWork count_work(const AttnSlice& slice, const KernelModel& kernel);
KernelWork count_work(std::span<const AttnSlice> slices, const KernelModel& kernel);

/// KernelWork that one call over `keys` key rows does: slices that see the same key rows share their items.
KernelWork of_one_call(KernelWork work, double keys, const KernelModel& kernel);

}  // namespace tangram
