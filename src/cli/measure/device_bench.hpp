// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Times of attention kernels on one GPU, tensors in its memory: over a whole mask, and over the part of each rank of a
// plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/step_inputs.hpp"
#include "tangram/plan.hpp"

namespace tangram::cli {

/// Median seconds of a call, or of all calls of a rank, launches included.
struct KernelTimes {
  int64_t area = 0;
  double forward_s = 0;
  double backward_s = 0;
};

struct DeviceBench {
  KernelTimes whole;
  /// One rank after the other on the one GPU; empty with cp_size 1.
  std::vector<KernelTimes> ranks;
};

/// Whether `tangram bench` measures backend `name` by bench_on_device: its tensors lie on a device. Throws what
/// make_attn_backend throws.
bool is_benched_on_device(const std::string& name);

/// Measures backend `options.backend` with random tensors. After a warm-up it makes `options.num_repeats` turns over
/// all masks, each long enough for CUDA events, so that all masks meet the same clocks. Needs a build with CUDA.
DeviceBench bench_on_device(const Plan& plan, const StepOptions& options);

}  // namespace tangram::cli
