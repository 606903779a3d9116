// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Time of kernels, from how a mask meets their tiles.
#include <algorithm>
#include <cmath>

#include "machine/head_dim_rates.hpp"
#include "plan/cost.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

double work_seconds(const SimInput& input, AttnPass pass, const Work& work, double num_heads, bool comm_active) {
  if (work.area == 0) return 0;
  const MachineModel& machine = input.machine;
  double share = 1;  // of the device that the rank's kernels have
  if (comm_active && machine.engine == CommEngine::kWorkers) {
    share = static_cast<double>(machine.workers - machine.comm_workers) / machine.workers;
  }
  const double ranks_here = std::min(input.cp_size(), machine.ranks_per_node);
  if (ranks_here > machine.devices_per_node) share *= machine.devices_per_node / ranks_here;
  const HeadConfig& heads = input.config.heads;
  KernelModel kernel = input.kernel(pass);
  kernel.flops_per_s *= head_dim_factor(machine.head_dim_rates, heads.head_dim, heads.head_dim_v, pass);
  return call_seconds(kernel, work, {num_heads, flops_per_head_cell(heads, pass), machine.workers, share});
}

}  // namespace tangram::sim
