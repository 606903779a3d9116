// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Constants of kernels from measured times.
#pragma once

#include <span>

#include "machine/kernel_work.hpp"
#include "tangram/machine.hpp"

namespace tangram {

/// One measured call: its work for one head by the kernel's tiles, how many heads, and how long it took.
struct KernelSample {
  KernelWork work;
  double num_heads = 1;
  double seconds = 0;
};

struct KernelFit {
  KernelModel model;
  /// Root of the mean squared relative error, and the largest, over the samples.
  double rms_error = 0;
  double max_error = 0;
};

/// The constants of `tiles` with the least squared relative error over the samples, none negative (tile_rows, tile_cols
/// and item_rows are kept). Linear least squares over every set of constants that are not 0. `flops` are those of a
/// visible cell of one head. Throws InvalidArgument for fewer than two samples or times that are not positive.
KernelFit fit_kernel(const KernelModel& tiles, std::span<const KernelSample> samples, double flops, int workers);

/// `seconds = bytes / bytes_per_s + copies * latency_s + call_s`.
struct LinkSample {
  double bytes = 0;
  double copies = 0;
  double seconds = 0;
};
struct LinkFit {
  LinkModel link;
  double call_s = 0;
  double rms_error = 0;
};
LinkFit fit_link(std::span<const LinkSample> samples);

}  // namespace tangram
