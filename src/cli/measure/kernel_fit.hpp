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

/// Rows of sampled masks.
struct SampleRows {
  int64_t most = 0;
  int64_t shortest = 0;  ///< of full and causal masks: `most`, half as many and so on, down to this
  int64_t fewest = 0;    ///< beside `most` keys, and keys beside as many rows: a quarter of `most` and so on, to this
};
/// Masks that differ in what KernelModel tells apart: whole tiles, diagonals, many short work tiles, few long ones.
std::vector<std::vector<AttnSlice>> sample_masks(const SampleRows& sizes);

/// Sample masks of GPUs, of at most `rows` rows; fits of them include the tail of a launch.
std::vector<std::vector<AttnSlice>> gpu_sample_masks(int64_t rows);

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

/// `entry` with the constants of both passes: its kernels must have their tiles, its workers are those of calls with
/// `num_heads` query heads. Throws what fit_kernel throws.
KernelMeasurement fit_entry(KernelEntry entry, std::span<const TimedCalls> calls, int num_heads);

/// `model off by 3.8 % and 3.7 % (root mean square), 10.3 % and 8.5 % at most`, forward and backward.
std::string errors_text(const KernelMeasurement& kernels);

}  // namespace tangram::cli
