// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/step.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <optional>
#include <thread>

#include "cli/gpu/gpu_step.hpp"
#include "cli/progress.hpp"
#include "cli/rank_step.hpp"
#include "comm/nodes/node_map.hpp"
#include "core/median.hpp"
#include "core/require.hpp"
#include "core/seconds_since.hpp"
#include "tangram/backends.hpp"
#include "tangram/env.hpp"
#include "tangram/local_group.hpp"
#include "tangram/mpi_group.hpp"

namespace tangram::cli {

namespace {

using Clock = std::chrono::steady_clock;

// Processor time of all threads of this process.
double process_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Ranks hold their rows in host memory, so the choice is among the backends that compute there.
std::string choose_backend(const std::string& wanted) {
  if (wanted != "auto") return wanted;
  for (const AttnBackendInfo& info : list_attn_backends()) {
    if (info.name == "cpu" && info.available) return info.name;
  }
  return "reference";
}

int threads_per_rank(int cp_size) {
  const int configured = Env::get().num_threads;
  const int total = configured > 0 ? configured : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, total / cp_size);
}

// Copies the rows of a rank's shard to their places in the whole tensor; ranks write disjoint rows.
void collect_rows(const Dispatch& dispatch, int rank, const HostTensor& shard, HostTensor& whole) {
  const int64_t row_bytes = shard.rows() == 0 ? 0 : shard.bytes() / shard.rows();
  int64_t row = 0;
  for (const Range& rows : dispatch.rows_of_rank(rank)) {
    std::memcpy(whole.data<char>() + rows.begin * row_bytes, shard.data<char>() + row * row_bytes,
                static_cast<size_t>(rows.size() * row_bytes));
    row += rows.size();
  }
}

std::vector<TimelineEvent> timeline_of(int rank, const std::vector<TraceEvent>& trace) {
  std::vector<TimelineEvent> events;
  for (const TraceEvent& event : trace) {
    Lane lane = Lane::kCompute;
    if (event.kind == TraceKind::kTransferCast) {
      lane = Lane::kTransfer;
    } else if (event.kind == TraceKind::kTransferReduce) {
      lane = Lane::kReturn;
    } else if (event.kind == TraceKind::kCopyLocal || event.kind == TraceKind::kFinish) {
      lane = Lane::kMemory;
    } else if (event.kind != TraceKind::kCompute) {
      continue;
    }
    events.push_back({rank, lane, event.pass == AttnPass::kBackward, event.stage, event.begin_s, event.end_s});
  }
  return events;
}

// The share that HCMS (arXiv 2607.01817) calls rho.
double comm_share_of(const std::vector<TraceEvent>& trace) {
  double transfer_s = 0, compute_s = 0;
  for (const TraceEvent& event : trace) {
    const double seconds = event.end_s - event.begin_s;
    if (event.kind == TraceKind::kCompute) compute_s += seconds;
    if (event.kind == TraceKind::kTransferCast || event.kind == TraceKind::kTransferReduce) transfer_s += seconds;
  }
  return transfer_s + compute_s > 0 ? transfer_s / (transfer_s + compute_s) : 0;
}

// A rank over host memory.
class HostRank final : public StepRank {
 public:
  HostRank(std::shared_ptr<const Plan> plan, Communicator& communicator, const AttnBackend& backend)
      : communicator_(communicator), attention_(std::move(plan), communicator, backend) {}
  Communicator& control() override { return communicator_; }
  DistAttention& attention() override { return attention_; }
  std::string transport() const override { return MpiGroup::is_launched() ? "mpi" : "local"; }

  PassFigures measure(const std::function<void(void*)>& pass) override {
    communicator_.barrier("pass begins");
    communicator_.reset_counters();
    const auto begin = Clock::now();
    const double cpu_begin = process_seconds();
    pass(nullptr);
    PassFigures figures;
    figures.received = communicator_.counters();
    communicator_.barrier("pass ends");
    figures.seconds = seconds_since(begin);
    figures.cpu_seconds = process_seconds() - cpu_begin;
    return figures;
  }

 private:
  Communicator& communicator_;
  DistAttention attention_;
};

int64_t sum_over_ranks(Communicator& communicator, int64_t value) {
  // In parts small enough for exact float32 sums: up to 2^36 a rank.
  constexpr int kBits = 12;
  constexpr int64_t kMask = (1 << kBits) - 1;
  float parts[] = {static_cast<float>(value & kMask), static_cast<float>((value >> kBits) & kMask),
                   static_cast<float>(value >> (2 * kBits))};
  communicator.all_reduce(parts, ReduceOp::kSum, "traffic");
  return std::llround(parts[0]) + (std::llround(parts[1]) << kBits) + (std::llround(parts[2]) << (2 * kBits));
}

// Calls `join` with the dispatch of each result, the rank's rows of it and the whole tensor.
template <class Join>
void join_results(const Plan& plan, const RankResults& rank, StepResult& result, const Join& join) {
  join(plan.q_dispatch, rank.out, result.out);
  join(plan.q_dispatch, rank.lse, result.lse);
  join(plan.q_dispatch, rank.dq, result.dq);
  join(plan.k_dispatch, rank.dk, result.dk);
  join(plan.k_dispatch, rank.dv, result.dv);
}

// This process's rank among those of processes. Every rank gets all results and the sums of figures.
RankFigures run_process(StepRank& rank, const Plan& plan, const StepInputs& inputs, const StepOptions& options,
                        StepResult& result) {
  Communicator& control = rank.control();
  RankFigures figures;
  const RankResults own = run_rank(rank, plan, inputs, options, figures);
  join_results(plan, own, result, [&](const Dispatch& dispatch, const HostTensor& shard, HostTensor& whole) {
    undispatch_rows(dispatch, control, shard, whole);
  });
  for (std::vector<PassFigures>* passes : {&figures.forward, &figures.backward}) {
    for (TrafficCounters* traffic : {&passes->back().received, &passes->back().across_nodes}) {
      traffic->rows_received = sum_over_ranks(control, traffic->rows_received);
      traffic->bytes_received = sum_over_ranks(control, traffic->bytes_received);
    }
    for (PassFigures& pass : *passes) {
      float seconds[] = {static_cast<float>(pass.cpu_seconds)};
      control.all_reduce(seconds, ReduceOp::kSum, "processor time");
      pass.cpu_seconds = seconds[0];
    }
  }
  result.is_root = control.rank() == 0;
  result.transport = rank.transport();
  return figures;
}

// All ranks, as threads of this process.
std::vector<RankFigures> run_threads(const Plan& plan, const StepInputs& inputs, const StepOptions& options,
                                     const std::function<std::unique_ptr<StepRank>(Communicator&)>& make_rank,
                                     StepResult& result) {
  std::vector<RankFigures> figures(static_cast<size_t>(plan.cp_size()));
  std::vector<std::vector<TimelineEvent>> timelines(figures.size());
  std::vector<double> comm_shares(figures.size());
  run_local_ranks(plan.cp_size(), [&](Communicator& communicator) {
    const std::unique_ptr<StepRank> rank = make_rank(communicator);
    const size_t i = static_cast<size_t>(communicator.rank());
    const RankResults own = run_rank(*rank, plan, inputs, options, figures[i]);
    timelines[i] = timeline_of(communicator.rank(), rank->attention().trace());
    comm_shares[i] = comm_share_of(rank->attention().trace());
    join_results(plan, own, result, [&](const Dispatch& dispatch, const HostTensor& shard, HostTensor& whole) {
      collect_rows(dispatch, communicator.rank(), shard, whole);
    });
  });
  for (const double share : comm_shares) result.comm_share += share / static_cast<double>(comm_shares.size());
  double first = std::numeric_limits<double>::infinity();
  for (const std::vector<TimelineEvent>& events : timelines) {
    for (const TimelineEvent& event : events) first = std::min(first, event.begin_s);
    result.timeline.insert(result.timeline.end(), events.begin(), events.end());
  }
  for (TimelineEvent& event : result.timeline) event.begin_s -= first, event.end_s -= first;
  return figures;
}

std::vector<double> times(const std::vector<PassFigures>& passes, double PassFigures::* kind) {
  std::vector<double> times;
  for (const PassFigures& pass : passes) times.push_back(pass.*kind);
  return times;
}

// Joins what was measured: times of rank 0, traffic of all entries.
void finish_result(const std::vector<RankFigures>& ranks, StepResult& result) {
  const std::vector<double> forward = times(ranks.front().forward, &PassFigures::seconds),
                            backward = times(ranks.front().backward, &PassFigures::seconds);
  result.forward_s = median(forward);
  result.backward_s = median(backward);
  result.forward_fastest_s = *std::min_element(forward.begin(), forward.end());
  result.backward_fastest_s = *std::min_element(backward.begin(), backward.end());
  result.forward_cpu_s = median(times(ranks.front().forward, &PassFigures::cpu_seconds));
  result.backward_cpu_s = median(times(ranks.front().backward, &PassFigures::cpu_seconds));
  for (const RankFigures& rank : ranks) {
    const PassFigures &there = rank.forward.back(), &back = rank.backward.back();
    result.rows_received += there.received.rows_received;
    result.forward_bytes += there.received.bytes_received;
    result.backward_bytes += back.received.bytes_received;
    result.node_rows += there.across_nodes.rows_received;
    result.node_forward_bytes += there.across_nodes.bytes_received;
    result.node_backward_bytes += back.across_nodes.bytes_received;
  }
  result.rows_received /= 2;  // K and V are tensors of their own
  result.node_rows /= 2;
}

// Tensors for the results of a step of the plan, undefined so far.
StepResult empty_result(const Plan& plan) {
  const HeadConfig& heads = plan.config.heads;
  const int64_t rows_q = plan.q_dispatch.seqlen();
  const int64_t rows_k = plan.k_dispatch.seqlen();
  StepResult result;
  result.out = HostTensor(heads.dtype, rows_q, heads.num_heads_q, heads.head_dim_v);
  result.dq = HostTensor(heads.dtype, rows_q, heads.num_heads_q, heads.head_dim);
  result.dk = HostTensor(heads.dtype, rows_k, heads.num_heads_kv, heads.head_dim);
  result.dv = HostTensor(heads.dtype, rows_k, heads.num_heads_kv, heads.head_dim_v);
  result.lse = HostTensor(DType::kFloat32, rows_q, heads.num_heads_q, 1);
  return result;
}

/// Options with the nodes on which ranks are found, if there are several and the options name none.
StepOptions with_found_nodes(StepOptions options, Communicator& control) {
  const comm::NodeMap nodes = comm::NodeMap::of(control);
  const bool hands_on = options.transport.empty() || options.transport == "copy_engine";
  if (options.ranks_per_node > 0 || nodes.num_nodes() == 1 || !hands_on) return options;
  options.ranks_per_node = nodes.ranks_per_node();
  options.transport.clear();  // copy engines inside, which is the default, and NCCL between
  return options;
}

}  // namespace

void require_runnable(const StepOptions& options, const DistOptions& dist) {
  // Each has a thread that moves rows as well, and all of them compare what they are about to do.
  constexpr int64_t kMaxThreads = 1024;
  require(options.num_gpus > 0 || MpiGroup::is_launched() || dist.cp_size <= kMaxThreads,
          "--cp-size: at most {} ranks can be threads of one process (got {}); plan and simulate take more",
          kMaxThreads, dist.cp_size);
}

StepResult run_step(const PlanSummary& summary, const StepInputs& inputs, const StepOptions& options,
                    Communicator* control) {
  require(options.ranks_per_node == 0 || summary.plan->cp_size() % options.ranks_per_node == 0,
          "--ranks-per-node: must divide the number of ranks (got {} for {})", options.ranks_per_node,
          summary.plan->cp_size());
  require(options.ranks_per_node == 0 || control != nullptr,
          "--ranks-per-node: needs --gpus, between ranks in host memory rows go straight to each (got {})",
          options.ranks_per_node);
  const Plan& plan = *summary.plan;
  StepResult result = empty_result(plan);
  if (control != nullptr) {
    const StepOptions found = with_found_nodes(options, *control);
    result.ranks_per_node = static_cast<int>(found.ranks_per_node);
    const std::unique_ptr<StepRank> rank = make_gpu_rank(summary.plan, found, *control);
    result.backend = best_attn_backend(MemoryKind::kDevice);
    finish_result({run_process(*rank, plan, inputs, options, result)}, result);
    result.comm_share = std::numeric_limits<double>::quiet_NaN();  // GPUs record no transfers here
    return result;
  }
  result.backend = choose_backend(options.backend);
  result.num_threads = threads_per_rank(plan.cp_size());
  const AttnBackendOptions backend_options{.num_threads = result.num_threads, .host_memory = true};
  if (MpiGroup::is_launched()) {
    const std::unique_ptr<AttnBackend> backend = make_attn_backend(result.backend, backend_options);
    MpiGroup group;
    require(group.communicator().size() == plan.cp_size(),
            "--cp-size: must be the number of ranks that mpirun started (got {} and {})", plan.cp_size(),
            group.communicator().size());
    HostRank rank(summary.plan, group.communicator(), *backend);
    finish_result({run_process(rank, plan, inputs, options, result)}, result);
    result.comm_share = comm_share_of(rank.attention().trace());  // of this process
    return result;
  }
  ProgressBar bar((1 + kBackwardWeight) * static_cast<double>(plan.mask.area()) *
                  static_cast<double>(options.num_repeats));
  // Made before any rank starts, so that one that does not exist is refused once.
  std::vector<std::unique_ptr<AttnBackend>> backends;
  std::vector<CountingBackend> counting;
  for (int rank = 0; rank < plan.cp_size(); ++rank) {
    backends.push_back(make_attn_backend(result.backend, backend_options));
    counting.emplace_back(*backends.back(), bar);
  }
  const auto make_rank = [&](Communicator& communicator) {
    const AttnBackend& backend = counting[static_cast<size_t>(communicator.rank())];
    return std::make_unique<HostRank>(summary.plan, communicator, backend);
  };
  finish_result(run_threads(plan, inputs, options, make_rank, result), result);
  return result;
}

}  // namespace tangram::cli
