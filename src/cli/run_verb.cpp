// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram run`: computes a step and says what it took.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/exit_code.hpp"
#include "cli/gpu/gpu_step.hpp"
#include "cli/npy.hpp"
#include "cli/report/timeline_svg.hpp"
#include "cli/step.hpp"
#include "cli/text_file.hpp"
#include "cli/unfinished.hpp"
#include "cli/verbs.hpp"
#include "core/require.hpp"
#include "tangram/env.hpp"

namespace tangram::cli {

namespace {

struct RunVerbOptions {
  MaskOptions mask;
  DistOptions dist;
  StepOptions step;
  OutputOptions output;
  std::string out_dir;
  std::string timeline;
};

// Writes the first `rows` rows, in float32.
void save(const std::string& path, const HostTensor& tensor, int64_t rows) {
  const HostTensor values = tensor.to(DType::kFloat32);
  const int64_t shape[] = {rows, tensor.heads(), tensor.dim()};
  write_npy(path, {values.data<float>(), static_cast<size_t>(rows * tensor.heads() * tensor.dim())}, shape);
}

void save_results(const std::string& folder, const PlanSummary& summary, const StepResult& result) {
  const int64_t rows_q = summary.plan->q_dispatch.seqlen() - summary.pad_q;
  const int64_t rows_k = summary.plan->k_dispatch.seqlen() - summary.pad_k;
  save(folder + "/out.npy", result.out, rows_q);
  save(folder + "/dq.npy", result.dq, rows_q);
  save(folder + "/dk.npy", result.dk, rows_k);
  save(folder + "/dv.npy", result.dv, rows_k);
  const int64_t shape[] = {rows_q, summary.plan->config.heads.num_heads_q};
  write_npy(folder + "/lse.npy", {result.lse.data<float>(), static_cast<size_t>(shape[0] * shape[1])}, shape);
}

/// The folders that were not there, the innermost first: they go again if nothing comes to lie in them.
std::vector<std::unique_ptr<Unfinished>> make_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::unique_ptr<Unfinished>> made;
  for (fs::path path = fs::absolute(folder, error); !path.empty() && !fs::exists(path, error);) {
    if (path.has_filename()) made.push_back(std::make_unique<Unfinished>(path.string()));
    path = path.parent_path();
  }
  fs::create_directories(folder, error);
  require(fs::is_directory(folder), "--out-dir: cannot make '{}': {}", folder, error.message());
  return made;
}

std::string timeline_title(const PlanSummary& summary, const StepResult& result) {
  const Plan& plan = *summary.plan;
  return fmt::format("{}, {} · measured over {}, rho {:.0f} %", to_string(plan.config.strategy.name), summary.mask_name,
                     result.transport, 100 * result.comm_share);
}

int run_main(RunVerbOptions options, Communicator* control) {
  apply_gpus(options.step, options.dist, control);
  require_runnable(options.step, options.dist);
  require(options.timeline.empty() || (options.step.num_gpus == 0 && is_one_host()),
          "--timeline: only ranks of one process have one time line (got {})",
          options.step.num_gpus > 0 ? "--gpus" : Env::launch().launcher);
  require(!is_standard_stream(options.timeline) || !options.output.json,
          "--timeline -: cannot be combined with --json, which prints too");
  const FileTensors files = read_tensors(options.step, options.dist);
  make_attn_options(options.step);  // refuses bad scales before anything is planned
  const PlanSummary summary = make_plan_summary(options.mask, options.dist);
  require_reportable(*summary.plan, options.output);
  const StepInputs inputs = make_inputs(summary, files, static_cast<uint64_t>(options.mask.seed));
  std::vector<std::unique_ptr<Unfinished>> made;
  if (!options.out_dir.empty()) made = make_folder(options.out_dir);
  if (is_one_host() || Env::launch().rank == 0) {  // only that one writes, and no other host need have the folder
    require_writable({{"--html", options.output.html}, {"--timeline", options.timeline}});
  }
  const StepResult result = run_step(summary, inputs, options.step, control);
  if (!result.is_root) {
    for (const auto& folder : made) folder->keep();  // the root's
    return kOk;
  }
  if (!options.out_dir.empty()) save_results(options.out_dir, summary, result);
  for (const auto& folder : made) folder->keep();
  if (!options.output.html.empty()) {
    write_file(options.output.html, "--html", html_report(summary, {result.timeline, step_figures(summary, result)}));
  }
  if (!options.timeline.empty()) {
    write_file(options.timeline, "--timeline", svg_timeline(result.timeline, timeline_title(summary, result)));
  }
  std::string text;
  if (options.output.json) {
    nlohmann::json json = plan_json(summary);
    json["run"] = step_json(summary, result);
    text = json.dump(2) + "\n";
  } else {
    text = step_text(summary, result);
    if (!options.out_dir.empty()) text += fmt::format("Results are in {}.\n", options.out_dir);
  }
  const bool is_printed = is_standard_stream(options.output.html) || is_standard_stream(options.timeline);
  if (!is_printed) print_text(text);
  return kOk;
}

}  // namespace

Verb add_run_verb(CLI::App& app) {
  auto options = std::make_shared<RunVerbOptions>();
  CLI::App* verb =
      app.add_subcommand("run", "Compute forward and backward over ranks: threads, processes of mpirun, or GPUs");
  add_mask_options(*verb, options->mask);
  add_dist_options(*verb, options->dist);
  add_strategy_options(*verb, options->dist);
  add_step_options(*verb, options->step);
  add_output_options(*verb, options->output);
  CLI::Option* repeat =
      verb->add_option("--repeat", options->step.num_repeats, "steps to take the median of (default 1)")
          ->type_name("N")
          ->group("Computation");
  require_whole_number(*repeat, 1, 1000);
  verb->add_option("--timeline", options->timeline, "write what each rank computed and received when, as SVG")
      ->type_name("FILE")
      ->group("Output");
  verb->add_option("--out-dir", options->out_dir, "write out, lse, dq, dk, dv as float32 .npy")
      ->type_name("FOLDER")
      ->group("Output");
  return {verb,
          [options] {
            return run_on_ranks(options->step, [&](Communicator* control) { return run_main(*options, control); });
          },
          {"tangram run --family sliding_window --window 1024,0 --seqlen 8192 --cp-size 4",
           "tangram run --total-seqlen 8192 --heads-q 8 --heads-kv 2 --head-dim 64 --html report.html",
           "mpirun -n 4 tangram run --family causal --seqlen 4096 --cp-size 4",
           "tangram run --family causal --seqlen 65536 --gpus 4"}};
}

}  // namespace tangram::cli
