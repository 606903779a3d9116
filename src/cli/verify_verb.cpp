// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram verify`: computes a step over ranks and compares every output with the float64 reference.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/exit_code.hpp"
#include "cli/gpu/gpu_step.hpp"
#include "cli/step.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs.hpp"
#include "cli/verification.hpp"
#include "tangram/env.hpp"

namespace tangram::cli {

namespace {

struct VerifyVerbOptions {
  MaskOptions mask;
  DistOptions dist;
  StepOptions step;
  OutputOptions output;
};

int verify_main(VerifyVerbOptions options, Communicator* control) {
  apply_gpus(options.step, options.dist, control);
  require_runnable(options.step, options.dist);
  const FileTensors files = read_tensors(options.step, options.dist);
  make_attn_options(options.step);  // refuses bad scales before anything is planned
  const PlanSummary summary = make_plan_summary(options.mask, options.dist);
  require_reportable(*summary.plan, options.output);
  const StepInputs inputs = make_inputs(summary, files, static_cast<uint64_t>(options.mask.seed));
  if (is_one_host() || Env::launch().rank == 0) require_writable({{"--html", options.output.html}});
  const StepResult result = run_step(summary, inputs, options.step, control);
  if (!result.is_root) return kOk;
  const Verification verification = verify_step(summary, inputs, options.step, result);
  if (!options.output.html.empty()) {
    ReportExtras extras{result.timeline, step_figures(summary, result)};
    for (const OutputError& output : verification.outputs) {
      extras.figures.emplace_back(
          fmt::format("relative error of {}", output.name),
          fmt::format("{:.2e}, bound {:.2e}: {}", output.error, output.bound, output.ok ? "verified" : "FAILED"));
    }
    write_file(options.output.html, "--html", html_report(summary, extras));
  }
  std::string text;
  if (options.output.json) {
    nlohmann::json json = plan_json(summary);
    json["run"] = step_json(summary, result);
    json["verification"] = verification_json(verification);
    text = json.dump(2) + "\n";
  } else {
    text = step_text(summary, result) + verification_text(verification);
  }
  if (!is_standard_stream(options.output.html)) print_text(text);
  return verification.ok() ? kOk : kVerificationFailed;
}

}  // namespace

Verb add_verify_verb(CLI::App& app) {
  auto options = std::make_shared<VerifyVerbOptions>();
  CLI::App* verb = app.add_subcommand("verify", "Compute over ranks and compare with the float64 reference");
  add_mask_options(*verb, options->mask);
  add_dist_options(*verb, options->dist);
  add_strategy_options(*verb, options->dist);
  add_step_options(*verb, options->step);
  add_output_options(*verb, options->output);
  return {verb,
          [options] {
            return run_on_ranks(options->step, [&](Communicator* control) { return verify_main(*options, control); });
          },
          {"tangram verify --family varlen_causal --seqlen 8192 --cp-size 4 --heads-q 8 --heads-kv 2 --head-dim 64",
           "tangram verify --family causal --seqlen 1024 --strategy ulysses --dtype bf16"}};
}

}  // namespace tangram::cli
