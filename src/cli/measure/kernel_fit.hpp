// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks whose calls tell the constants of a kernel apart, and those constants from the times of the calls.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/machine_file.hpp"
#include "machine/fit.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/slice.hpp"

namespace tangram::cli {

/// Masks that differ in what KernelModel tells apart: whole tiles, diagonals, many short items, few rows of many keys.
/// Full and causal ones have `rows` rows, half as many and so on, down to `shortest`; the others have `rows` rows, keys
/// or both.
std::vector<std::vector<AttnSlice>> sample_masks(int64_t rows, int64_t shortest);

/// A call over these slices: as many rows and keys as they need.
AttnShape shape_of_call(std::span<const AttnSlice> slices, const HeadConfig& heads);

/// Seconds of a call of each pass.
struct TimedCalls {
  std::vector<AttnSlice> slices;
  double forward_s = 0;
  double backward_s = 0;
};

struct KernelMeasurement {
  KernelEntry entry;
  KernelFit forward;
  KernelFit backward;
};

/// `entry` with the constants of both passes: its kernels must have their tiles, its workers those that calls of
/// `num_heads` query heads had. Throws what fit_kernel throws.
KernelMeasurement fit_entry(KernelEntry entry, std::span<const TimedCalls> calls, int num_heads);

/// `model off by 3.8 % and 3.7 % (root mean square), 10.3 % and 8.5 % at most`, forward and backward.
std::string errors_text(const KernelMeasurement& kernels);

}  // namespace tangram::cli
