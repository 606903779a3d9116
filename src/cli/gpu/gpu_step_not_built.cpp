// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/gpu/gpu_step.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

StepResult run_gpu_step(const PlanSummary&, const StepInputs&, const StepOptions&, Communicator&) {
  throw NotAvailable("--gpus: this build has no GPU code; build it where nvcc is found");
}

}  // namespace tangram::cli
