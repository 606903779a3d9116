// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/app.hpp"
#include "cli/gpu/gpu_step.hpp"
#include "comm/launched_group.hpp"
#include "comm/socket/forked_ranks.hpp"
#include "core/require.hpp"
#include "tangram/backends.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

namespace {

void check_gpus(const StepOptions& step) {
  if (step.num_gpus == 0) {
    require(step.transport.empty(), "--transport: needs --gpus N (got '{}')", step.transport);
    return;
  }
  require(1 <= step.num_gpus && step.num_gpus <= 64, "--gpus: must lie in [1, 64] (got {})", step.num_gpus);
  const std::string best = best_attn_backend(MemoryKind::kDevice);
  require(step.backend == "auto" || step.backend == best, "--gpus: needs --backend {} (got '{}')", best, step.backend);
}

}  // namespace

void apply_gpus(const StepOptions& step, DistOptions& dist) {
  check_gpus(step);
  if (step.num_gpus == 0) return;
  dist.cp_size = step.num_gpus;
  if (!dist.has_dtype) dist.dtype = "bfloat16";
}

int run_on_ranks(const StepOptions& options, const std::function<int(Communicator*)>& verb_main) {
  if (options.num_gpus == 0) return verb_main(nullptr);
  check_gpus(options);
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

bool is_one_host() { return !comm::LaunchedGroup::is_launched(); }

}  // namespace tangram::cli
