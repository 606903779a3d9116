// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the GPUs of this host compute and copy in a second: kernels of the default backend of GPUs, and rows in their
// memory.
#pragma once

#include "cli/measure/machine_measure.hpp"
#include "tangram/communicator.hpp"

namespace tangram::cli {

/// Kernels, memory and the cost of a further call on the current GPU of this rank. All ranks measure at the same time,
/// so that figures are those of a busy host. Links are left out; so are kernels and calls, with a note that says why,
/// where none can run. Collective. Throws NotAvailable in a build without CUDA.
Measured measure_gpu_kernels(Communicator& control, const MeasureOptions& options);

}  // namespace tangram::cli
