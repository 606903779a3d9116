// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One step, forward and backward, over ranks that are threads of this process, processes of a launcher, or processes
// with a GPU each.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/report/html_report.hpp"
#include "cli/step_inputs.hpp"
#include "tangram/communicator.hpp"

namespace tangram::cli {

/// Results of all rows in global order, padding included, in the step's dtype, and what computing them took.
struct StepResult {
  HostTensor out;
  HostTensor dq;
  HostTensor dk;
  HostTensor dv;
  HostTensor lse;  // [seqlen_q, num_heads_q, 1]
  std::string backend;
  /// `local`, or that between processes: `mpi` when mpirun started them, `socket` other launchers, `copy_engine`,
  /// `nccl` or `hierarchical` between GPUs. Every process then has all results.
  std::string transport = "local";
  /// Whether this process is the one to print: the only one, or rank 0.
  bool is_root = true;
  int num_threads = 1;  // of every rank
  /// Median seconds over the repeats, from the moment that all ranks start until the last one has ended.
  double forward_s = 0;
  double backward_s = 0;
  /// The fastest repeat, and the median of the processor time of all ranks together: less disturbed on busy machines.
  double forward_fastest_s = 0;
  double backward_fastest_s = 0;
  double forward_cpu_s = 0;
  double backward_cpu_s = 0;
  /// What one step really copied, over all ranks: K/V rows of the forward pass, bytes of both passes.
  int64_t rows_received = 0;
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
  /// Over nodes of GPUs: ranks of a node, and what one step really sent between nodes.
  int ranks_per_node = 0;
  int64_t node_rows = 0;  // K/V rows of the forward pass
  int64_t node_forward_bytes = 0;
  int64_t node_backward_bytes = 0;
  /// Seconds of transfers / (transfers + attention) of the last repeat, mean over ranks (over mpi: rank 0). Transfers
  /// count whether or not attention hides them. NaN where none are recorded (on GPUs).
  double comm_share = 0;
  /// Events of the last repeat, the first one at 0; empty over mpi.
  std::vector<TimelineEvent> timeline;
};

/// Refuses more ranks than can be threads of one process; for verbs that compute, before they plan. Throws
/// InvalidArgument.
void require_runnable(const StepOptions& options, const DistOptions& dist);

/// Runs `options.num_repeats` steps, as the rank of `control` where that is given (see run_on_ranks). Throws what
/// planning, backends and transports throw.
StepResult run_step(const PlanSummary& summary, const StepInputs& inputs, const StepOptions& options,
                    Communicator* control = nullptr);

/// FLOPs of a pass by visible area.
double forward_flops(const Plan& plan);
double backward_flops(const Plan& plan);

/// Lines of name and value: time, rate and traffic, for tables and reports.
std::vector<std::pair<std::string, std::string>> step_figures(const PlanSummary& summary, const StepResult& result);
std::string step_text(const PlanSummary& summary, const StepResult& result);
nlohmann::json step_json(const PlanSummary& summary, const StepResult& result);

}  // namespace tangram::cli
