// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/app.hpp"
#include "cli/gpu/gpu_step.hpp"
#include "comm/launched_group.hpp"
#include "comm/nodes/node_map.hpp"
#include "comm/socket/forked_ranks.hpp"
#include "core/require.hpp"
#include "tangram/backends.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

bool has_launched_ranks() {
  const Env::Launch launch = Env::launch();
  return launch.launcher == "mpirun" || launch.size > 1;
}

namespace {

void check_gpus(const StepOptions& step) {
  if (step.num_gpus == 0) {
    require(step.transport.empty(), "--transport: needs --gpus N (got '{}')", step.transport);
    require(step.max_ctas == 0, "--max-ctas: needs --gpus N (got {})", step.max_ctas);
    return;
  }
  constexpr int64_t kMost = 64, kMostOverNodes = 64 * 64;  // comm::require_group_size
  const int64_t most = has_launched_ranks() ? kMostOverNodes : kMost;
  require(1 <= step.num_gpus && step.num_gpus <= most, "--gpus: must lie in [1, {}] (got {})", most, step.num_gpus);
  const std::string best = best_attn_backend(MemoryKind::kDevice);
  require(step.backend == "auto" || step.backend == best, "--gpus: needs --backend {} (got '{}')", best, step.backend);
}

/// Copy engines inside a node, which is the default, and NCCL between: others hand nothing on.
bool hands_on(const StepOptions& step) { return step.transport.empty() || step.transport == "copy_engine"; }

}  // namespace

void apply_gpus(StepOptions& step, DistOptions& dist, Communicator* control) {
  check_gpus(step);
  if (step.num_gpus == 0) return;
  dist.cp_size = step.num_gpus;
  if (!dist.has_dtype) dist.dtype = "bfloat16";
  if (control == nullptr) return;
  const comm::NodeMap nodes = comm::NodeMap::of(*control);
  if (step.ranks_per_node == 0 && nodes.num_nodes() > 1 && hands_on(step)) {
    step.ranks_per_node = nodes.ranks_per_node();
    step.transport.clear();
  }
  const bool divides = step.ranks_per_node > 0 && step.num_gpus % step.ranks_per_node == 0;  // or is refused later
  if (divides && step.ranks_per_node < step.num_gpus) dist.ranks_per_node = step.ranks_per_node;
}

int run_on_ranks(const StepOptions& options, const std::function<int(Communicator*)>& verb_main) {
  check_gpus(options);
  if (options.num_gpus == 0) {
    if (!has_launched_ranks()) return verb_main(nullptr);
    comm::LaunchedGroup group;
    return verb_main(&group.communicator());
  }
  require_gpu_code();  // once, before there are ranks that would all say it
  const auto rank_main = [&](Communicator& control) {
    try {
      choose_gpus(control);
    } catch (const NotAvailable& error) {  // the same on all ranks: say it once
      return control.rank() == 0 ? report_error(error) : exit_code_of(error);
    }
    try {
      return verb_main(&control);
    } catch (const InvalidArgument& error) {  // so is this
      return control.rank() == 0 ? report_error(error) : exit_code_of(error);
    }
  };
  if (const Env::Launch launch = Env::launch(); !launch.launcher.empty()) {
    require(launch.size == options.num_gpus, "--gpus: under {} must be the number of its processes (got {} and {})",
            launch.launcher, options.num_gpus, launch.size);
    comm::LaunchedGroup group;
    return rank_main(group.communicator());
  }
  return comm::run_forked_ranks(static_cast<int>(options.num_gpus), rank_main, report_error);
}

int gpu_of(const Env::Launch& launch, int rank, int num_seen) {
  if (launch.launcher.empty()) return rank;
  return num_seen == 1 ? 0 : launch.local_rank;
}

bool is_one_host() { return !comm::LaunchedGroup::is_launched(); }

}  // namespace tangram::cli
