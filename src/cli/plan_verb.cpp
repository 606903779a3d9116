// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram plan`: who gets what, without computing it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "attn/gpu/abilities.hpp"
#include "cli/exit_code.hpp"
#include "cli/plan_summary.hpp"
#include "cli/report/html_report.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs.hpp"
#include "comm/copy_engine/kernel_transfers.hpp"
#include "core/require.hpp"
#include "plan/program/text.hpp"
#include "runtime/gpu_target.hpp"
#include "tangram/attention.hpp"

namespace tangram::cli {

namespace {

struct PlanVerbOptions {
  MaskOptions mask;
  DistOptions dist;
  OutputOptions output;
  std::string save_plan;
  std::optional<int> program;
  std::string target = "host";
};

/// GPUs of one host, one a rank, that copy engines connect. Masks of scattered blocks, whose calls begin once all keys
/// are there, are not looked for.
constexpr GpuAbilities kGpusOfOneHost{
    .transfers = kCopyEngineTransfers, .max_ready_flags = kMaxReadyFlags, .local_kv_halo = kLocalKvHalo};

/// Text of a rank's programs of a step, forward and backward.
std::string programs_text(const Plan& plan, int rank, const std::string& target_name) {
  require(target_name == "host" || target_name == "gpu", "--target: must be host or gpu (got {})", target_name);
  const bool on_gpus = target_name == "gpu";
  require(rank >= 0 && rank < plan.cp_size(), "--program: must be a rank in [0, {}) (got {})", plan.cp_size(), rank);
  CallShape call = CallShape::with_results(plan.config.heads.dtype, plan.config.heads.dtype);
  const bool keeps = can_keep(plan);
  call.keeps = keeps;
  const ProgramTarget target =
      on_gpus ? gpu_target(plan, rank, kGpusOfOneHost, DeviceOverlap::kAuto, DeviceOverlap::kAuto, true) : kHostTarget;
  std::string text =
      fmt::format("rank {} of {}, forward, on {}\n", rank, plan.cp_size(), on_gpus ? "GPUs" : "the host");
  text += program_text(forward_program(plan, rank, call, target));
  text += fmt::format("\nbackward{}\n", keeps ? ", with what the forward pass kept" : "");
  return text + program_text(backward_program(plan, rank, call, target, keeps));
}

int plan_main(PlanVerbOptions options) {
  take_dtype_of_machine(options.dist);
  require_writable({{"--save-plan", options.save_plan}, {"--html", options.output.html}});
  const bool is_printed = is_standard_stream(options.output.html) || is_standard_stream(options.save_plan);
  require(!is_printed || !(options.program || options.output.json),
          "--html -, --save-plan -: cannot be combined with --json or --program, which print too");
  const PlanSummary summary = make_plan_summary(options.mask, options.dist);
  require_reportable(*summary.plan, options.output);
  if (!options.save_plan.empty()) write_file(options.save_plan, "--save-plan", plan_to_json(*summary.plan));
  if (!options.output.html.empty()) write_file(options.output.html, "--html", html_report(summary, {}));
  if (is_printed) return kOk;
  if (options.program) {
    print_text(programs_text(*summary.plan, *options.program, options.target));
    return kOk;
  }
  const std::string text = options.output.json ? plan_json(summary).dump(2) + "\n" : plan_text(summary);
  print_text(text);
  return kOk;
}

}  // namespace

Verb add_plan_verb(CLI::App& app) {
  auto options = std::make_shared<PlanVerbOptions>();
  options->dist.dtype.clear();  // that of the machine
  CLI::App* verb = app.add_subcommand("plan", "Show who computes what, what moves, and what it costs");
  add_mask_options(*verb, options->mask);
  add_dist_options(*verb, options->dist);
  add_strategy_options(*verb, options->dist);
  require_whole_number(*verb->add_option("--ranks-per-node", options->dist.ranks_per_node,
                                         "ranks of a node, where there are several (default: all are one node)")
                            ->type_name("N")
                            ->group("Distribution"),
                       1, 1 << 16);
  add_output_options(*verb, options->output);
  verb->add_option("--save-plan", options->save_plan, "write the whole plan as JSON")
      ->type_name("FILE")
      ->group("Output");
  verb->add_option("--program", options->program,
                   "print what this rank does in a step, operation by operation, instead")
      ->type_name("RANK")
      ->excludes(verb->get_option("--json"))
      ->group("Output");
  verb->add_option("--target", options->target,
                   "with --program: host (default), or gpu, as GPUs of one host do it, by copy engines")
      ->type_name("NAME")
      ->needs(verb->get_option("--program"))
      ->group("Output");
  return {verb,
          [options] { return plan_main(*options); },
          {"tangram plan --family causal --seqlen 131072 --cp-size 8",
           "tangram plan --family causal --seqlen 131072 --cp-size 8 --strategy ring --program 0",
           "tangram plan --total-seqlen 131072 --seed 1 --cp-size 8 --html report.html",
           "tangram plan --total-seqlen 524288 --cp-size 64 --ranks-per-node 8",
           "tangram plan --mask mask.json --cp-size 4 --strategy auto"}};
}

}  // namespace tangram::cli
