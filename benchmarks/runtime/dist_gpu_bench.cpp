// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Distributed attention on GPUs beside the same kernels on the whole mask on one GPU: every mask, transport and number
// of stages, one process a GPU, times of the slowest rank, as CSV.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "attn/sm90/sm90_backend.hpp"
#include "comm/socket/forked_ranks.hpp"
#include "core/require.hpp"
#include "core/seconds_since.hpp"
#include "cuda/check.hpp"
#include "measured_passes.hpp"
#include "reference/mask_cases.hpp"
#include "tangram/error.hpp"
#include "tangram/version.hpp"
#include "ways.hpp"

namespace tangram::bench {
namespace {

constexpr std::string_view kBlocks = "blocks";

struct Options {
  int num_gpus = 2;
  std::vector<int64_t> rows = {8192, 32768};
  std::vector<std::string> masks = {"full",
                                    "causal",
                                    "varlen_causal",
                                    "varlen_causal_long",
                                    "varlen_block_causal",
                                    "varlen_causal_uniform",
                                    "varlen_block_causal_uniform",
                                    "sliding_window_causal"};
  std::vector<std::string> transports = {"copy_engine", "nccl"};
  std::vector<std::string> ways = {"none", "single:1", "single:4", "keep:1", "stages:1", "stages:2", "stages:4"};
  std::vector<std::string> modes = {"eager", "graph"};
  double share_of_blocks = 0.12;
  std::string dispatch = "auto";
  std::string reduce_dtype = "float32";
  std::string launch_order = "auto";
  int sm_margin = 0;
  bool batch_copies = true;
  int connections = 0;  // CUDA_DEVICE_MAX_CONNECTIONS; 0: as the environment says
  double seconds = 0.15;
  double warm_s = Repeats().warm_s;
  bool without_single = false;
  std::string trace;  // where to write what the GPUs did
  HeadConfig heads{64, 8, 128, 128, DType::kBFloat16};
};

/// Square blocks of which a random share is visible, and the diagonal: as top-k blocks that a model has chosen, a slice
/// for each run of neighbours. `name`: `blocks64` are of 64 rows and keys.
reference::MaskCase block_case(const std::string& name, int64_t seqlen, double share) {
  const int64_t block = std::stoll(name.substr(kBlocks.size())), count = seqlen / block;
  require(block > 0 && seqlen % block == 0, "bench_dist_gpu: blocks must divide the sequence (got {}, {})", name,
          seqlen);
  std::mt19937 random(5);
  reference::MaskCase c{name + ":" + std::to_string(seqlen), seqlen, 0, {}};
  for (int64_t row = 0; row < count; ++row) {
    int64_t first = -1;
    for (int64_t key = 0; key <= count; ++key) {
      const bool is_chosen = static_cast<double>(random()) < share * static_cast<double>(std::mt19937::max());
      const bool is_visible = key < count && (is_chosen || key == row);
      if (is_visible && first < 0) first = key;
      if (is_visible || first < 0) continue;
      c.slices.push_back(AttnSlice::full({row * block, (row + 1) * block}, {first * block, key * block}));
      first = -1;
    }
  }
  return c;
}

std::vector<reference::MaskCase> chosen_cases(const Options& options) {
  std::vector<reference::MaskCase> chosen;
  const std::vector<reference::MaskCase> all = reference::load_mask_cases("dist_masks.json");
  for (const int64_t rows : options.rows) {
    for (const std::string& mask : options.masks) {
      if (mask.starts_with(kBlocks)) {
        chosen.push_back(block_case(mask, rows * options.num_gpus, options.share_of_blocks));
        continue;
      }
      const std::string name = mask + ":" + std::to_string(rows * options.num_gpus);
      for (const reference::MaskCase& c : all) {
        if (c.name == name) chosen.push_back(c);
      }
    }
  }
  return chosen;
}

double flops(const Mask& mask, const HeadConfig& heads, bool backward) {
  const double matmuls = backward ? 10.0 : 4.0;  // two of two FLOPs each, or five
  return matmuls * static_cast<double>(mask.area()) * heads.num_heads_q * heads.head_dim;
}

/// One rank's view of the whole run; rank 0 prints.
class Bench {
 public:
  Bench(const Options& options, Communicator& control) : options_(options), control_(control) {
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    machine_ = properties.name;
    std::replace(machine_.begin(), machine_.end(), ' ', '_');
    repeats_.seconds = options.seconds;
    repeats_.warm_s = options.warm_s;
    if (options.trace.empty()) return;
    trace_.emplace();
    trace_file_.open(fmt::format("{}.{}.csv", options.trace, control.rank()));
    trace_file_ << "mask,rows_per_gpu,transport,overlap,rank,stream,name,begin_ns,end_ns,bytes\n";
  }

  void run() {
    if (control_.rank() == 0) {
      std::printf(
          "version,machine,mask,seqlen,gpus,rows_per_gpu,heads_q,heads_kv,head_dim,transport,launch_order,sm_margin,"
          "connections,overlap,mode,pass,time_ms,"
          "tflops_per_gpu,single_tflops,share,host_us,balance,rows_moved,alone_ms,predicted_ms,single_busy_tflops,"
          "mean_time_ms,mean_alone_ms,plan_ms,prepare_ms\n");
    }
    for (const reference::MaskCase& c : chosen_cases(options_)) {
      const Mask mask(c.seqlen, c.seqlen, c.slices);
      std::unique_ptr<MeasuredPasses> single;
      if (!options_.without_single) single = whole_mask_passes(mask, options_.heads);
      for (const std::string& transport : options_.transports) run_transport(c.name, mask, single.get(), transport);
    }
  }

 private:
  /// What the host of the slowest rank does once for a mask.
  struct HostTimes {
    double plan_s = 0;
    double prepare_s = 0;  ///< DistAttention, when the communicator has had one like it
  };
  /// A way of distributing a mask, in all modes that are compared.
  struct Contender {
    std::string name;
    std::shared_ptr<const Plan> plan;
    std::unique_ptr<DistAttention> attention;
    HostTimes made;
    bool keeps = false;  // forward leaves something to backward, so that only both together can be timed
    std::vector<std::unique_ptr<MeasuredPasses>> modes;
    std::unique_ptr<MeasuredPasses> alone;  // so that what transfers cost can be told
  };

  std::shared_ptr<const Plan> plan_of(const Mask& mask, const Way& way) const {
    DistAttnConfig config;
    config.cp_size = control_.size();
    config.heads = options_.heads;
    config.strategy = way.strategy;
    config.overlap = {way.num_stages, way.num_stages, way.keeps_rows, parse_launch_order(options_.launch_order),
                      options_.sm_margin};
    config.movement.algorithm = way.movement;
    config.dispatch.algorithm = parse_dispatch_algorithm(options_.dispatch);
    config.reduce_dtype = options_.reduce_dtype == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
    return std::make_shared<const Plan>(make_plan(mask, config));
  }

  void run_transport(const std::string& name, const Mask& mask, MeasuredPasses* single, const std::string& transport) {
    std::unique_ptr<DeviceCommunicator> communicator;
    try {
      communicator = make_device_communicator(control_, {.transport = parse_device_transport(transport),
                                                         .max_ctas = options_.sm_margin,
                                                         .batch_copies = options_.batch_copies});
    } catch (const NotAvailable& error) {
      if (control_.rank() == 0) std::fprintf(stderr, "%s: %s\n", transport.c_str(), error.what());
      return;
    }
    const Sm90Backend backend;
    const std::vector<Contender> contenders = make_contenders(mask, backend, *communicator);
    std::vector<MeasuredPasses*> turns;
    if (single != nullptr) turns.push_back(single);
    for (const Contender& contender : contenders) {
      for (const auto& passes : contender.modes) turns.push_back(passes.get());
      if (contender.alone) turns.push_back(contender.alone.get());
    }
    const std::vector<PassTimes> times = measure_passes(control_, repeats_, turns);
    communicator->check();
    auto next = times.begin();
    const PassTimes whole = single != nullptr ? *next++ : PassTimes{};
    for (const Contender& contender : contenders) {
      const auto first = next;
      next += std::ssize(contender.modes);
      const PassTimes alone = contender.alone ? *next++ : PassTimes{};
      for (size_t i = 0; i < contender.modes.size(); ++i) {
        print(name, *contender.plan, {whole, first[static_cast<ptrdiff_t>(i)], alone, contender.made},
              fmt::format("{},{},{},{},{},{}", transport, options_.launch_order, options_.sm_margin,
                          options_.connections, contender.name, options_.modes[i]));
      }
      if (!trace_) continue;
      const auto activities = trace_distributed(*communicator, *contender.attention, contender.keeps, *trace_);
      write_trace(name, *contender.plan, transport, contender.name, activities);
    }
  }

  /// Host seconds of the slowest rank.
  template <class Work>
  double host_seconds(const Work& work) const {
    control_.barrier("host");
    const auto begin = std::chrono::steady_clock::now();
    work();
    auto seconds = static_cast<float>(seconds_since(begin));
    control_.all_reduce({&seconds, 1}, ReduceOp::kMax, "host times");
    return seconds;
  }

  std::vector<Contender> make_contenders(const Mask& mask, const Sm90Backend& backend,
                                         DeviceCommunicator& communicator) const {
    std::vector<Contender> contenders;
    for (const std::string& name : options_.ways) {
      const Way way = parse_way(name);
      Contender contender{.name = name};
      try {
        contender.made.plan_s = host_seconds([&] { contender.plan = plan_of(mask, way); });
      } catch (const InvalidArgument& error) {  // heads that do not divide
        if (control_.rank() == 0) std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
        continue;
      }
      const Plan& plan = *contender.plan;
      for (int i = 0; i < 2; ++i) {
        contender.made.prepare_s = host_seconds([&] {
          contender.attention =
              std::make_unique<DistAttention>(contender.plan, communicator, backend,
                                              DistAttentionOptions{.forward = way.overlap, .backward = way.overlap});
        });
      }
      // auto:keep keeps where it chose a strategy that exchanges heads.
      contender.keeps = plan.grid() == nullptr ? way.keeps_rows : way.keeps_heads && plan.ulysses_degree() > 1;
      for (const std::string& mode : options_.modes) {
        contender.modes.push_back(
            distributed_passes(communicator, *contender.attention, contender.keeps, mode == "graph"));
      }
      if ((plan.grid() == nullptr && plan.movement() == nullptr) || way.overlap == DeviceOverlap::kNone) {
        contender.alone = alone_passes(plan, control_.rank());
      }
      contenders.push_back(std::move(contender));
    }
    return contenders;
  }

  struct Measured {
    const PassTimes& whole;  ///< the whole mask on one GPU; zero if not measured, as `alone`
    const PassTimes& times;
    const PassTimes& alone;  ///< attention of the slowest rank without transfers
    const HostTimes& made;
  };

  void print(const std::string& name, const Plan& plan, const Measured& measured, const std::string& how) const {
    if (control_.rank() != 0) return;
    const auto& [whole, times, alone, made] = measured;
    const double forward = flops(plan.mask, options_.heads, false), backward = flops(plan.mask, options_.heads, true);
    const auto line = [&](const char* pass, double work, const CallTime& time, const CallTime& single,
                          const CallTime& alone_time, double predicted_s) {
      const auto rate_in = [&](double seconds) { return seconds > 0 ? work / seconds : 0; };
      const double rate = rate_in(time.device_s) / control_.size(), single_rate = rate_in(single.mean_device_s);
      std::printf(
          "%s,%s,%s,%lld,%d,%lld,%d,%d,%d,%s,%s,%.4f,%.1f,%.1f,%.4f,%.1f,%.4f,%lld,%.4f,%.4f,%.1f,%.4f,%.4f,%.3f,%."
          "3f\n",
          kVersion, machine_.c_str(), name.substr(0, name.find(':')).c_str(),
          static_cast<long long>(plan.mask.seqlen_q()), control_.size(),
          static_cast<long long>(plan.q_dispatch.rows_per_rank()), options_.heads.num_heads_q,
          options_.heads.num_heads_kv, options_.heads.head_dim, how.c_str(), pass, time.device_s * 1e3, rate * 1e-12,
          single_rate * 1e-12, single_rate > 0 ? rate / single_rate : 0, time.host_s * 1e6, plan.balance(),
          static_cast<long long>(plan.rows_moved()), alone_time.device_s * 1e3, predicted_s * 1e3,
          rate_in(single.device_s) * 1e-12, time.mean_device_s * 1e3, alone_time.mean_device_s * 1e3, made.plan_s * 1e3,
          made.prepare_s * 1e3);
    };
    const PredictedTime& predicted = plan.predicted;
    if (times.backward.device_s > 0) {  // else one call was both
      line("forward", forward, times.forward, whole.forward, alone.forward, predicted.forward_s);
      line("backward", backward, times.backward, whole.backward, alone.backward, predicted.backward_s);
    }
    const auto sum = [](const PassTimes& of) {
      return CallTime{of.forward.device_s + of.backward.device_s, of.forward.mean_device_s + of.backward.mean_device_s,
                      of.forward.host_s + of.backward.host_s};
    };
    line("both", forward + backward, sum(times), sum(whole), sum(alone), predicted.forward_s + predicted.backward_s);
    std::fflush(stdout);
  }

  void write_trace(const std::string& name, const Plan& plan, const std::string& transport, const std::string& way,
                   const std::vector<DeviceActivity>& activities) {
    for (const DeviceActivity& activity : activities) {
      trace_file_ << fmt::format("{},{},{},{},{},{},{},{},{},{}\n", name.substr(0, name.find(':')),
                                 plan.q_dispatch.rows_per_rank(), transport, way, control_.rank(), activity.stream,
                                 activity.name, activity.begin_ns, activity.end_ns, activity.num_bytes);
    }
    trace_file_.flush();
  }

  const Options& options_;
  Communicator& control_;
  std::optional<DeviceTrace> trace_;
  std::ofstream trace_file_;
  std::string machine_;
  Repeats repeats_;
};

int run_rank(const Options& options, Communicator& control) {
  int num_devices = 0;
  cuda::check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  cuda::check(cudaSetDevice(control.rank() % num_devices), "cudaSetDevice");
  Bench(options, control).run();
  return 0;
}

int report(const std::exception& error) {
  std::fprintf(stderr, "bench_dist_gpu: %s\n", error.what());
  return 1;
}

}  // namespace
}  // namespace tangram::bench

int main(int argc, char** argv) {
  using namespace tangram::bench;
  Options options;
  CLI::App app("Distributed attention on GPUs beside the whole mask on one GPU; prints CSV", "bench_dist_gpu");
  app.add_option("--gpus", options.num_gpus, "ranks, one a GPU (default 2)");
  app.add_option("--rows", options.rows, "rows of a GPU (default 8192,32768)")->delimiter(',');
  app.add_option("--masks", options.masks,
                 "names of tests/data/dist_masks.json; blocksN: random blocks of N rows and keys")
      ->delimiter(',');
  app.add_option("--share-of-blocks", options.share_of_blocks,
                 "of the blocks of blocksN that are visible (default 0.12)");
  app.add_option("--heads-kv", options.heads.num_heads_kv, "K/V heads (default 8)");
  app.add_option("--dispatch", options.dispatch, "whose rows are whose: auto, sequential, ... (default auto)");
  app.add_option("--transports", options.transports, "copy_engine, nccl")->delimiter(',');
  app.add_option("--overlap", options.ways,
                 "none, single:STAGES, keep:STAGES, stages:STAGES, move:MOVEMENT, or STRATEGY[/N...][:none|:keep]")
      ->delimiter(',');
  bool all_strategies = false;
  app.add_flag("--strategies", all_strategies, "every strategy beside Tangram's own; instead of --overlap");
  app.add_option("--modes", options.modes, "eager, graph")->delimiter(',');
  app.add_option("--reduce-dtype", options.reduce_dtype, "float32 or bfloat16");
  app.add_option("--launch-order", options.launch_order,
                 "auto, copy_engine, sm_margin, high_priority, kernel_barrier (default auto)");
  app.add_option(
      "--sm-margin", options.sm_margin,
      "multiprocessors for transfers of nccl, with launch orders auto and sm_margin (default: as many as it takes)");
  app.add_flag("--batch-copies,!--no-batch-copies", options.batch_copies,
               "whether copy engines get all copies of a stage in one call");
  app.add_option("--connections", options.connections,
                 "hardware queues of a process; 1: kernels of all streams start in the order of the calls");
  app.add_option("--seconds", options.seconds, "about how long each pass is counted (default 0.15)");
  app.add_option("--warm", options.warm_s, "about how long all that is compared runs before that (default 0.3)");
  app.add_flag("--without-single", options.without_single,
               "do not measure the whole mask on one GPU, which takes long where it has many rows; its columns are 0");
  app.add_option("--trace", options.trace,
                 "also write what the GPUs did in one pass of each kind to FILE.RANK.csv; needs CUPTI");
  CLI11_PARSE(app, argc, argv);
  if (all_strategies) options.ways = ways_of_all_strategies();
  // Before CUDA starts, in every rank.
  // A kernel that is loaded at its first launch would wait for kernels that wait for other ranks.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  if (options.connections > 0) {
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(options.connections).c_str(), 1);
  }
  try {
    return tangram::comm::run_forked_ranks(
        options.num_gpus, [&](tangram::Communicator& control) { return run_rank(options, control); }, report);
  } catch (const std::exception& error) {
    return report(error);
  }
}
