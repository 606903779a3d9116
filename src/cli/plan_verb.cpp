// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram plan`: who gets what, without computing it.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/exit_code.hpp"
#include "cli/plan_summary.hpp"
#include "cli/report/html_report.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs.hpp"

namespace tangram::cli {

namespace {

struct PlanVerbOptions {
  MaskOptions mask;
  DistOptions dist;
  OutputOptions output;
  std::string save_plan;
};

int plan_main(const PlanVerbOptions& options) {
  require_writable({{"--save-plan", options.save_plan}, {"--html", options.output.html}});
  const PlanSummary summary = make_plan_summary(options.mask, options.dist);
  require_reportable(*summary.plan, options.output);
  if (!options.save_plan.empty()) write_file(options.save_plan, "--save-plan", plan_to_json(*summary.plan));
  if (!options.output.html.empty()) write_file(options.output.html, "--html", html_report(summary, {}));
  const std::string text = options.output.json ? plan_json(summary).dump(2) + "\n" : plan_text(summary);
  print_text(text);
  return kOk;
}

}  // namespace

Verb add_plan_verb(CLI::App& app) {
  auto options = std::make_shared<PlanVerbOptions>();
  CLI::App* verb = app.add_subcommand("plan", "Show who computes what, what moves, and what it costs");
  add_mask_options(*verb, options->mask);
  add_dist_options(*verb, options->dist);
  add_strategy_options(*verb, options->dist);
  add_output_options(*verb, options->output);
  verb->add_option("--save-plan", options->save_plan, "write the whole plan as JSON")
      ->type_name("FILE")
      ->group("Output");
  return {verb,
          [options] { return plan_main(*options); },
          {"tangram plan --family causal --seqlen 131072 --cp-size 8",
           "tangram plan --total-seqlen 131072 --seed 1 --cp-size 8 --html report.html",
           "tangram plan --mask mask.json --cp-size 4 --strategy auto"}};
}

}  // namespace tangram::cli
