// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the transports between the GPUs of this host give.
#pragma once

#include "cli/measure/machine_measure.hpp"

namespace tangram::cli {

/// Links of every transport that can be used between GPUs, one for each rank of `control`. A note for each, or the
/// reason why it is not available; kernels and memory are left out. Collective; the same on all ranks. Throws
/// NotAvailable in a build without CUDA and where there are fewer GPUs than ranks.
Measured measure_gpu_links(Communicator& control, int num_repeats);

}  // namespace tangram::cli
