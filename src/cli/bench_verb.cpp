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
#include "cli/gpu/gpu_step.hpp"
#include "cli/machine.hpp"
#include "cli/measure/device_bench.hpp"
#include "cli/measure/gpu_links.hpp"
#include "cli/measure/link_measure.hpp"
#include "cli/step.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs.hpp"
#include "comm/nodes/node_map.hpp"
#include "core/require.hpp"
#include "plan/program/emit.hpp"
#include "tangram/backends.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/local_group.hpp"

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

/// Where ranks compute.
std::string machine_name(const StepOptions& step) {
  return step.num_gpus > 0 ? device_name(best_attn_backend(MemoryKind::kDevice)) : probe_cpu().name;
}

/// The transport that --comm-only measures. Between nodes only NCCL is measured: the two-level (relay) transport has no
/// single link rate. Nodes are those that the ranks detect.
DeviceCommunicatorConfig link_config(const StepOptions& step, Communicator& control) {
  require(step.ranks_per_node == 0, "--comm-only: measures links between nodes as they are found (got {})",
          "--ranks-per-node");
  const bool has_nodes = comm::NodeMap::of(control).num_nodes() > 1;
  DeviceCommunicatorConfig config;
  config.transport = parse_device_transport(!step.transport.empty() ? step.transport
                                            : has_nodes             ? "nccl"
                                                                    : "copy_engine");
  require(!has_nodes || config.transport == DeviceTransport::kNccl, "--transport: must be nccl between nodes (got {})",
          step.transport);
  config.max_ctas = static_cast<int>(step.max_ctas);
  return config;
}

// Exchanges between neighbours over the transport, without attention.
int bench_comm_main(const BenchVerbOptions& options, Communicator* control) {
  const MaskOptions& mask = options.mask;
  require(!options.plan_only, "--comm-only: cannot be combined with --plan-only");
  require(mask.mask_file.empty() && mask.family.empty() && mask.cu_seqlens.empty() && mask.doc_lengths.empty() &&
              mask.sequences.empty() && mask.total_seqlen == -1 && mask.seqlen == -1,
          "--comm-only: takes no mask, which would have no effect");
  require(2 <= options.dist.cp_size && options.dist.cp_size <= 256,
          "--cp-size: must lie in [2, 256] with --comm-only (got {})", options.dist.cp_size);
  LinkMeasurement measured;
  FigureContext context;
  context.heads = {8, 8, 64, 64, DType::kFloat32};  // measure_link moves rows of these heads
  int ctas = 0;
  const auto num_repeats = static_cast<int>(options.step.num_repeats);
  const auto measure = [&](Communicator& communicator) {
    LinkMeasurement mine = measure_link(communicator, num_repeats);
    if (communicator.rank() != 0) return;
    measured = std::move(mine);
    context.transport = communicator.name();
    context.cp_size = communicator.size();
  };
  if (options.step.num_gpus > 0) {
    GpuLink link = measure_gpu_link(*control, link_config(options.step, *control), num_repeats);
    measured = std::move(link.measured);
    context.transport = link.transport;
    context.cp_size = control->size();
    context.heads = {8, 8, 128, 128, DType::kBFloat16};
    ctas = link.ctas;
  } else if (control != nullptr) {
    measure(*control);
  } else {
    run_local_ranks(static_cast<int>(options.dist.cp_size), measure);
  }
  if (control != nullptr && control->rank() != 0) return kOk;
  context.mask = "none";
  FigureCsv csv(machine_name(options.step));
  for (const LinkSample& sample : measured.samples) {
    csv.add(context, fmt::format("exchange_time_{:.0f}_bytes_in_{:.0f}", sample.bytes, sample.copies), "s",
            sample.seconds);
  }
  csv.add(context, "link_rate", "GB/s", measured.fit.link.bytes_per_s * 1e-9);
  csv.add(context, "message_time", "s", measured.fit.link.latency_s);
  csv.add(context, "operation_time", "s", measured.fit.call_s);
  if (ctas > 0) csv.add(context, "thread_blocks", "1", ctas);
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

// Name of the strategy. If queries move, the name of the movement algorithm follows, as in `tangram_qo`.
std::string strategy_name(const Plan& plan) {
  const std::string name(to_string(plan.config.strategy.name));
  return plan.movement() == nullptr ? name : name + "_" + std::string(to_string(plan.config.movement.algorithm));
}

int bench_main(BenchVerbOptions options, Communicator* control) {
  if (options.comm_only) {
    if (options.step.num_gpus > 0) options.dist.cp_size = options.step.num_gpus;
    return bench_comm_main(options, control);
  }
  apply_gpus(options.step, options.dist, control);
  make_attn_options(options.step);  // refuses bad scales before anything is planned
  // on_gpus: ranks compute steps on one GPU each. on_device: this process measures the kernels of all ranks on one
  // device.
  const bool on_gpus = options.step.num_gpus > 0;
  const bool on_device = !options.plan_only && !on_gpus && is_benched_on_device(options.step.backend);
  if (!options.plan_only && !on_device) require_runnable(options.step, options.dist);
  const PlanSummary summary = make_plan_summary(options.mask, options.dist);
  const Plan& plan = *summary.plan;
  require(!on_device || plan.grid() == nullptr, "--strategy: kernels on a device are measured for tangram (got {})",
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
  FigureCsv csv(on_device ? device_name(options.step.backend) : machine_name(options.step));
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
    const StepResult result = run_step(summary, inputs, options.step, control);
    if (!result.is_root) return kOk;
    context.backend = result.backend;
    context.transport = result.transport;
    csv.add(context, "forward_time", "s", result.forward_s);
    csv.add(context, "backward_time", "s", result.backward_s);
    csv.add(context, "forward_time_fastest", "s", result.forward_fastest_s);
    csv.add(context, "backward_time_fastest", "s", result.backward_fastest_s);
    if (!on_gpus) {
      csv.add(context, "forward_processor_time", "s", result.forward_cpu_s);
      csv.add(context, "backward_processor_time", "s", result.backward_cpu_s);
    }
    csv.add(context, "forward_rate", "GFLOP/s", forward_flops(plan) / result.forward_s * 1e-9);
    csv.add(context, "backward_rate", "GFLOP/s", backward_flops(plan) / result.backward_s * 1e-9);
    csv.add(context, "forward_traffic", "bytes", static_cast<double>(result.forward_bytes));
    csv.add(context, "backward_traffic", "bytes", static_cast<double>(result.backward_bytes));
    if (!on_gpus) csv.add(context, "comm_share", "1", result.comm_share);
    if (result.ranks_per_node > 0) {
      csv.add(context, "ranks_per_node", "1", result.ranks_per_node);
      csv.add(context, "forward_traffic_between_nodes", "bytes", static_cast<double>(result.node_forward_bytes));
      csv.add(context, "backward_traffic_between_nodes", "bytes", static_cast<double>(result.node_backward_bytes));
    }
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
  add_gpu_options(*verb, options->step);
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
          [options] {
            require(options->step.num_gpus == 0 || !options->plan_only, "--plan-only: cannot be combined with --gpus");
            if (options->plan_only) return bench_main(*options, nullptr);
            return run_on_ranks(options->step, [&](Communicator* control) { return bench_main(*options, control); });
          },
          {"tangram bench --family causal --seqlen 8192 --cp-size 4",
           "tangram bench --family causal --seqlen 131072 --gpus 8",
           "tangram bench --total-seqlen 1048576 --cp-size 64 --plan-only"}};
}

}  // namespace tangram::cli
