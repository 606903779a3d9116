// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram bench`: figures of planning and of a step as CSV, one figure a line, always with the same columns.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "cli/exit_code.hpp"
#include "cli/figure_csv.hpp"
#include "cli/machine.hpp"
#include "cli/measure/device_bench.hpp"
#include "cli/measure/link_measure.hpp"
#include "cli/step.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs.hpp"
#include "core/require.hpp"
#include "plan/program/emit.hpp"
#include "tangram/backends.hpp"
#include "tangram/local_group.hpp"
#include "tangram/mpi_group.hpp"

namespace tangram::cli {

namespace {

struct BenchVerbOptions {
  MaskOptions mask;
  DistOptions dist;
  StepOptions step;
  bool plan_only = false;
  bool comm_only = false;
};

/// Device of the backend, as in doctor.
std::string device_name(const std::string& backend) {
  for (const AttnBackendInfo& info : list_attn_backends()) {
    if (info.name == backend) return info.detail;
  }
  return "";
}

// Exchanges between neighbours over the transport, without attention.
int bench_comm_main(const BenchVerbOptions& options) {
  const MaskOptions& mask = options.mask;
  require(!options.plan_only, "--comm-only: cannot be combined with --plan-only");
  require(mask.mask_file.empty() && mask.family.empty() && mask.cu_seqlens.empty() && mask.doc_lengths.empty() &&
              mask.sequences.empty() && mask.total_seqlen == -1 && mask.seqlen == -1,
          "--comm-only: takes no mask, which would have no effect");
  require(2 <= options.dist.cp_size && options.dist.cp_size <= 256,
          "--cp-size: must lie in [2, 256] with --comm-only (got {})", options.dist.cp_size);
  LinkMeasurement measured;
  FigureContext context;
  bool is_root = true;
  const auto measure = [&](Communicator& communicator) {
    LinkMeasurement mine = measure_link(communicator, static_cast<int>(options.step.num_repeats));
    if (communicator.rank() != 0) return;
    measured = std::move(mine);
    context.transport = communicator.name();
    context.cp_size = communicator.size();
  };
  if (MpiGroup::is_launched()) {
    MpiGroup group;
    is_root = group.communicator().rank() == 0;
    measure(group.communicator());
  } else {
    run_local_ranks(static_cast<int>(options.dist.cp_size), measure);
  }
  if (!is_root) return kOk;
  context.mask = "none";
  context.heads = {8, 8, 64, 64, DType::kFloat32};  // of the rows that measure_link moves
  FigureCsv csv(probe_cpu().name);
  for (const LinkSample& sample : measured.samples) {
    csv.add(context, fmt::format("exchange_time_{:.0f}_bytes_in_{:.0f}", sample.bytes, sample.copies), "s",
            sample.seconds);
  }
  csv.add(context, "link_rate", "GB/s", measured.fit.link.bytes_per_s * 1e-9);
  csv.add(context, "message_time", "s", measured.fit.link.latency_s);
  csv.add(context, "operation_time", "s", measured.fit.call_s);
  print_text(csv.text());
  return kOk;
}

void add_kernel_figures(FigureCsv& csv, const FigureContext& context, const Plan& plan, const DeviceBench& bench) {
  const auto add_pass = [&](const std::string& pass, double flops, double KernelTimes::* seconds) {
    const double whole_rate = 1e-12 * flops / (bench.whole.*seconds);
    csv.add(context, "kernel_" + pass + "_time", "s", bench.whole.*seconds);
    csv.add(context, "kernel_" + pass + "_rate", "TFLOP/s", whole_rate);
    if (bench.ranks.empty()) return;
    double sum = 0, slowest = 0;
    for (const KernelTimes& rank : bench.ranks) {
      sum += rank.*seconds;
      slowest = std::max(slowest, rank.*seconds);
    }
    const double rank_rate = 1e-12 * flops / sum;
    csv.add(context, "rank_kernel_" + pass + "_time_max", "s", slowest);
    csv.add(context, "rank_kernel_" + pass + "_rate", "TFLOP/s", rank_rate);
    csv.add(context, "rank_kernel_" + pass + "_share", "1", rank_rate / whole_rate);
  };
  if (bench.whole.area == 0) return;  // no work, no rate
  add_pass("forward", forward_flops(plan), &KernelTimes::forward_s);
  add_pass("backward", backward_flops(plan), &KernelTimes::backward_s);
}

// Where queries move, `tangram_qo` or whichever way it is.
std::string strategy_name(const Plan& plan) {
  const std::string name(to_string(plan.config.strategy.name));
  return plan.movement.empty() ? name : name + "_" + std::string(to_string(plan.config.movement.algorithm));
}

int bench_main(const BenchVerbOptions& options) {
  if (options.comm_only) return bench_comm_main(options);
  make_attn_options(options.step);  // refuses bad scales before anything is planned
  const bool on_device = !options.plan_only && is_benched_on_device(options.step.backend);
  if (!options.plan_only && !on_device) require_runnable(options.step, options.dist);
  const PlanSummary summary = make_plan_summary(options.mask, options.dist);
  const Plan& plan = *summary.plan;
  require(!on_device || plan.grid.empty(), "--strategy: kernels on a device are measured for tangram (got {})",
          describe(plan.config.strategy));
  FigureContext context{summary.mask_name,
                        plan.q_dispatch.seqlen(),
                        plan.k_dispatch.seqlen(),
                        plan.cp_size(),
                        plan.q_dispatch.chunk_size,
                        plan.config.heads,
                        "",
                        "",
                        strategy_name(plan)};
  FigureCsv csv(on_device ? device_name(options.step.backend) : probe_cpu().name);
  csv.add(context, "plan_time", "ms", summary.plan_ms);
  csv.add(context, "balance", "1", plan.balance());
  if (moves_kv_alone(plan)) {
    csv.add(context, "rows_moved", "rows", static_cast<double>(plan.rows_moved()));
    csv.add(context, "rows_lower_bound", "rows", static_cast<double>(summary.rows_lower_bound));
  }
  for (const auto& [peer, rows] : {std::pair("ring", summary.ring_rows), std::pair("ulysses", summary.ulysses_rows)}) {
    FigureContext of_peer = context;
    of_peer.strategy = peer;
    csv.add(of_peer, "rows_moved", "rows", static_cast<double>(rows));
  }
  if (on_device) {
    context.backend = options.step.backend;
    add_kernel_figures(csv, context, plan, bench_on_device(plan, options.step));
  } else if (!options.plan_only) {
    const StepInputs inputs = make_inputs(summary, {}, static_cast<uint64_t>(options.mask.seed));
    const StepResult result = run_step(summary, inputs, options.step);
    if (!result.is_root) return kOk;
    context.backend = result.backend;
    context.transport = result.transport;
    csv.add(context, "forward_time", "s", result.forward_s);
    csv.add(context, "backward_time", "s", result.backward_s);
    csv.add(context, "forward_time_fastest", "s", result.forward_fastest_s);
    csv.add(context, "backward_time_fastest", "s", result.backward_fastest_s);
    csv.add(context, "forward_processor_time", "s", result.forward_cpu_s);
    csv.add(context, "backward_processor_time", "s", result.backward_cpu_s);
    csv.add(context, "forward_rate", "GFLOP/s", forward_flops(plan) / result.forward_s * 1e-9);
    csv.add(context, "backward_rate", "GFLOP/s", backward_flops(plan) / result.backward_s * 1e-9);
    csv.add(context, "forward_traffic", "bytes", static_cast<double>(result.forward_bytes));
    csv.add(context, "backward_traffic", "bytes", static_cast<double>(result.backward_bytes));
    csv.add(context, "comm_share", "1", result.comm_share);
  }
  print_text(csv.text());
  return kOk;
}

}  // namespace

Verb add_bench_verb(CLI::App& app) {
  auto options = std::make_shared<BenchVerbOptions>();
  options->step.num_repeats = 5;
  CLI::App* verb = app.add_subcommand("bench", "Measure planning and a step; prints CSV");
  add_mask_options(*verb, options->mask);
  add_dist_options(*verb, options->dist);
  add_strategy_options(*verb, options->dist);
  verb->add_option("--backend", options->step.backend, "attention: auto, or a name that doctor lists")
      ->type_name("NAME")
      ->group("Computation");
  verb->add_flag("--deterministic", options->step.deterministic, "bitwise equal from run to run")->group("Computation");
  CLI::Option* repeat =
      verb->add_option("--repeat", options->step.num_repeats, "steps to take the median of (default 5)")
          ->type_name("N")
          ->group("Computation");
  require_whole_number(*repeat, 1, 1000);
  verb->add_flag("--comm-only", options->comm_only, "measure exchanges over the transport only; needs no mask")
      ->group("Computation");
  verb->add_flag("--plan-only", options->plan_only, "measure planning only")->group("Computation");
  return {verb,
          [options] { return bench_main(*options); },
          {"tangram bench --family causal --seqlen 8192 --cp-size 4",
           "tangram bench --total-seqlen 1048576 --cp-size 64 --plan-only"}};
}

}  // namespace tangram::cli
