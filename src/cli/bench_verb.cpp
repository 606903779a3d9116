// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram bench`: figures of planning and of a step as CSV, one figure a line, always with the same columns.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/exit_code.hpp"
#include "cli/machine.hpp"
#include "cli/step.hpp"
#include "cli/verbs.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

struct BenchVerbOptions {
  MaskOptions mask;
  DistOptions dist;
  StepOptions step;
  bool plan_only = false;
};

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

int bench_main(const BenchVerbOptions& options) {
  const PlanSummary summary = make_plan_summary(options.mask, options.dist);
  const Plan& plan = *summary.plan;
  const HeadConfig& heads = plan.config.heads;
  const std::string prefix =
      fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}", kVersion, quoted(probe_cpu().name), quoted(summary.mask_name),
                  plan.mask.seqlen_q(), plan.mask.seqlen_k(), plan.cp_size(), plan.q_dispatch.chunk_size,
                  heads.num_heads_q, heads.num_heads_kv, heads.head_dim, heads.head_dim_v, to_string(heads.dtype));
  std::string backend;
  std::string text =
      "version,machine,mask,seqlen_q,seqlen_k,cp_size,chunk_size,heads_q,heads_kv,head_dim,head_dim_v,dtype,backend,"
      "figure,unit,value\n";
  const auto add = [&](const char* figure, const char* unit, double value) {
    text += fmt::format("{},{},{},{},{:.9g}\n", prefix, backend, figure, unit, value);
  };
  add("plan_time", "ms", summary.plan_ms);
  add("balance", "1", plan.balance());
  add("rows_moved", "rows", static_cast<double>(plan.rows_moved()));
  add("rows_lower_bound", "rows", static_cast<double>(summary.rows_lower_bound));
  add("rows_ring", "rows", static_cast<double>(summary.ring_rows));
  if (!options.plan_only) {
    const StepInputs inputs = make_inputs(summary, {}, static_cast<uint64_t>(options.mask.seed));
    const StepResult result = run_step(summary, inputs, options.step);
    if (!result.is_root) return kOk;
    backend = result.backend;
    add("forward_time", "s", result.forward_s);
    add("backward_time", "s", result.backward_s);
    add("forward_rate", "GFLOP/s", forward_flops(plan) / result.forward_s * 1e-9);
    add("backward_rate", "GFLOP/s", backward_flops(plan) / result.backward_s * 1e-9);
    add("forward_traffic", "bytes", static_cast<double>(result.forward_bytes));
    add("backward_traffic", "bytes", static_cast<double>(result.backward_bytes));
  }
  std::fputs(text.c_str(), stdout);
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
