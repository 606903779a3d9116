// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/gpu/gpu_step.hpp"
#include "cli/measure/gpu_kernels.hpp"

namespace tangram::cli {

Measured measure_gpu_kernels(Communicator&, const MeasureOptions&) {
  require_gpu_code();
  return {};
}

}  // namespace tangram::cli
