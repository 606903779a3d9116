// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram bench`: figures of planning and of a step as CSV, one figure a line, always with the same columns.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "cli/exit_code.hpp"
#include "cli/figure_csv.hpp"
#include "cli/machine.hpp"
#include "cli/step.hpp"
#include "cli/verbs.hpp"

namespace tangram::cli {

namespace {

struct BenchVerbOptions {
  MaskOptions mask;
  DistOptions dist;
  StepOptions step;
  bool plan_only = false;
};

int bench_main(const BenchVerbOptions& options) {
  const PlanSummary summary = make_plan_summary(options.mask, options.dist);
  const Plan& plan = *summary.plan;
  FigureContext context{summary.mask_name,
                        plan.mask.seqlen_q(),
                        plan.mask.seqlen_k(),
                        plan.cp_size(),
                        plan.q_dispatch.chunk_size,
                        plan.config.heads,
                        "",
                        "",
                        "tangram"};
  FigureCsv csv(probe_cpu().name);
  csv.add(context, "plan_time", "ms", summary.plan_ms);
  csv.add(context, "balance", "1", plan.balance());
  csv.add(context, "rows_moved", "rows", static_cast<double>(plan.rows_moved()));
  csv.add(context, "rows_lower_bound", "rows", static_cast<double>(summary.rows_lower_bound));
  for (const auto& [peer, rows] : {std::pair("ring", summary.ring_rows), std::pair("ulysses", summary.ulysses_rows)}) {
    FigureContext of_peer = context;
    of_peer.strategy = peer;
    csv.add(of_peer, "rows_moved", "rows", static_cast<double>(rows));
  }
  if (!options.plan_only) {
    const StepInputs inputs = make_inputs(summary, {}, static_cast<uint64_t>(options.mask.seed));
    const StepResult result = run_step(summary, inputs, options.step);
    if (!result.is_root) return kOk;
    context.backend = result.backend;
    context.transport = result.transport;
    csv.add(context, "forward_time", "s", result.forward_s);
    csv.add(context, "backward_time", "s", result.backward_s);
    csv.add(context, "forward_rate", "GFLOP/s", forward_flops(plan) / result.forward_s * 1e-9);
    csv.add(context, "backward_rate", "GFLOP/s", backward_flops(plan) / result.backward_s * 1e-9);
    csv.add(context, "forward_traffic", "bytes", static_cast<double>(result.forward_bytes));
    csv.add(context, "backward_traffic", "bytes", static_cast<double>(result.backward_bytes));
  }
  std::fputs(csv.text().c_str(), stdout);
  return kOk;
}

}  // namespace

Verb add_bench_verb(CLI::App& app) {
  auto options = std::make_shared<BenchVerbOptions>();
  options->step.num_repeats = 5;
  CLI::App* verb = app.add_subcommand("bench", "Measure planning and a step; prints CSV");
  add_mask_options(*verb, options->mask);
  add_dist_options(*verb, options->dist);
  verb->add_option("--backend", options->step.backend, "attention: auto, or a name that doctor lists")
      ->group("Computation");
  verb->add_option("--repeat", options->step.num_repeats, "steps to take the median of (default 5)")
      ->check(CLI::Range(1, 1000))
      ->group("Computation");
  verb->add_flag("--plan-only", options->plan_only, "measure planning only")->group("Computation");
  return {verb, [options] { return bench_main(*options); }};
}

}  // namespace tangram::cli
