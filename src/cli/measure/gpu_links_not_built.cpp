// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/gpu_links.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

Measured measure_gpu_links(Communicator&, int) {
  throw NotAvailable("--gpus: this build has no GPU code; build it where nvcc is found");
}

GpuLink measure_gpu_link(Communicator&, const DeviceCommunicatorConfig&, int) {
  throw NotAvailable("--gpus: this build has no GPU code; build it where nvcc is found");
}

}  // namespace tangram::cli
