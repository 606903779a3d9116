// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/gpu/gpu_step.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

void require_gpu_code() { throw NotAvailable("--gpus: this build has no GPU code; build it where nvcc is found"); }

void choose_gpus(Communicator&) { require_gpu_code(); }

std::unique_ptr<StepRank> make_gpu_rank(std::shared_ptr<const Plan>, const StepOptions&, Communicator&) {
  require_gpu_code();
  return nullptr;
}

}  // namespace tangram::cli
