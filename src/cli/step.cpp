// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/step.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <optional>
#include <thread>

#include "cli/gpu/gpu_step.hpp"
#include "cli/progress.hpp"
#include "core/median.hpp"
#include "core/require.hpp"
#include "core/seconds_since.hpp"
#include "tangram/backends.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/env.hpp"
#include "tangram/hierarchical_group.hpp"
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

// What the ranks share: results, and what rank 0 and all ranks measured.
struct SharedStep {
  const Plan* plan = nullptr;
  const StepInputs* inputs = nullptr;
  StepResult* result = nullptr;
  AttnOptions attn;
  int64_t num_repeats = 1;
  bool over_mpi = false;
  std::vector<double> forward_times;
  std::vector<double> backward_times;
  std::vector<double> forward_cpu_times;  // of this process
  std::vector<double> backward_cpu_times;
  std::vector<std::vector<TimelineEvent>> timelines;
  std::vector<double> comm_shares;
  std::vector<TrafficCounters> forward_traffic;
  std::vector<TrafficCounters> backward_traffic;
  int ranks_per_node = 0;
  std::vector<TrafficCounters> forward_node_traffic;  // across nodes
  std::vector<TrafficCounters> backward_node_traffic;
};

TrafficCounters difference(TrafficCounters after, const TrafficCounters& before) {
  after.rows_received -= before.rows_received;
  after.bytes_received -= before.bytes_received;
  return after;
}

// The rank's part in all repeats. Each rank writes its own entries; times are rank 0's, between barriers.
void run_rank(SharedStep& shared, std::shared_ptr<const Plan> plan, Communicator& world, const AttnBackend& backend) {
  std::optional<HierarchicalGroup> nodes;
  if (shared.ranks_per_node > 0) nodes.emplace(world, HierarchicalConfig{.ranks_per_node = shared.ranks_per_node});
  Communicator& communicator = nodes ? nodes->communicator() : world;
  const auto node_traffic = [&] { return nodes ? nodes->across_nodes() : TrafficCounters(); };
  const int rank = communicator.rank();
  const HeadConfig& heads = plan->config.heads;
  const int64_t q_rows = plan->q_dispatch.rows_per_rank();
  const int64_t k_rows = plan->k_dispatch.rows_per_rank();
  HostTensor q(heads.dtype, q_rows, heads.num_heads_q, heads.head_dim), dq = q.clone();
  HostTensor k(heads.dtype, k_rows, heads.num_heads_kv, heads.head_dim), dk = k.clone();
  HostTensor v(heads.dtype, k_rows, heads.num_heads_kv, heads.head_dim_v), dv = v.clone();
  HostTensor out(heads.dtype, q_rows, heads.num_heads_q, heads.head_dim_v), dout = out.clone();
  HostTensor lse(DType::kFloat32, q_rows, heads.num_heads_q, 1);
  dispatch_rows(plan->q_dispatch, rank, shared.inputs->q, q);
  dispatch_rows(plan->k_dispatch, rank, shared.inputs->k, k);
  dispatch_rows(plan->k_dispatch, rank, shared.inputs->v, v);
  dispatch_rows(plan->q_dispatch, rank, shared.inputs->dout, dout);

  DistAttention attention(plan, communicator, backend);
  KeptKv kept;
  KeptKv* const kept_or_null = keeps_inputs(*plan) ? &kept : nullptr;
  for (int64_t repeat = 0; repeat < shared.num_repeats; ++repeat) {
    communicator.barrier("step begins");
    communicator.reset_counters();
    const TrafficCounters nodes_begin = node_traffic();
    const auto forward_begin = Clock::now();
    const double forward_cpu_begin = process_seconds();
    attention.forward(
        {.q = q, .k = k, .v = v, .out = out, .lse = lse.data<float>(), .kept = kept_or_null, .options = shared.attn});
    shared.forward_traffic[static_cast<size_t>(rank)] = communicator.counters();
    communicator.barrier("forward ends");
    const TrafficCounters nodes_middle = node_traffic();
    shared.forward_node_traffic[static_cast<size_t>(rank)] = difference(nodes_middle, nodes_begin);
    const double forward_s = seconds_since(forward_begin);
    const double forward_cpu_s = process_seconds() - forward_cpu_begin;
    communicator.reset_counters();
    const auto backward_begin = Clock::now();
    const double backward_cpu_begin = process_seconds();
    attention.backward({.q = q,
                        .k = k,
                        .v = v,
                        .out = out,
                        .lse = lse.data<float>(),
                        .dout = dout,
                        .dq = dq,
                        .dk = dk,
                        .dv = dv,
                        .kept = kept_or_null,
                        .options = shared.attn});
    shared.backward_traffic[static_cast<size_t>(rank)] = communicator.counters();
    communicator.barrier("backward ends");
    shared.backward_node_traffic[static_cast<size_t>(rank)] = difference(node_traffic(), nodes_middle);
    if (rank == 0 || shared.over_mpi) {
      shared.forward_times.push_back(forward_s);
      shared.backward_times.push_back(seconds_since(backward_begin));
      shared.forward_cpu_times.push_back(forward_cpu_s);
      shared.backward_cpu_times.push_back(process_seconds() - backward_cpu_begin);
    }
  }
  shared.timelines[static_cast<size_t>(rank)] = timeline_of(rank, attention.trace());
  shared.comm_shares[static_cast<size_t>(rank)] = comm_share_of(attention.trace());

  StepResult& result = *shared.result;
  const auto collect = [&](const Dispatch& dispatch, const HostTensor& shard, HostTensor& whole) {
    if (shared.over_mpi) {
      undispatch_rows(dispatch, communicator, shard, whole);
    } else {
      collect_rows(dispatch, rank, shard, whole);
    }
  };
  collect(plan->q_dispatch, out, result.out);
  collect(plan->q_dispatch, lse, result.lse);
  collect(plan->q_dispatch, dq, result.dq);
  collect(plan->k_dispatch, dk, result.dk);
  collect(plan->k_dispatch, dv, result.dv);
}

// This process's rank among those of mpirun. Every rank gets all results and the sums of traffic.
void run_over_mpi(SharedStep& shared, std::shared_ptr<const Plan> plan, const AttnBackend& backend) {
  MpiGroup group;
  Communicator& communicator = group.communicator();
  require(communicator.size() == plan->cp_size(),
          "--cp-size: must be the number of ranks that mpirun started (got {} and {})", plan->cp_size(),
          communicator.size());
  run_rank(shared, plan, communicator, backend);
  const size_t rank = static_cast<size_t>(communicator.rank());
  for (std::vector<TrafficCounters>* traffic : {&shared.forward_traffic, &shared.backward_traffic,
                                                &shared.forward_node_traffic, &shared.backward_node_traffic}) {
    TrafficCounters total;
    total.rows_received = sum_over_ranks(communicator, (*traffic)[rank].rows_received);
    total.bytes_received = sum_over_ranks(communicator, (*traffic)[rank].bytes_received);
    (*traffic)[rank] = total;
  }
  for (std::vector<double>* times : {&shared.forward_cpu_times, &shared.backward_cpu_times}) {
    for (double& time : *times) {
      float seconds[] = {static_cast<float>(time)};
      communicator.all_reduce(seconds, ReduceOp::kSum, "processor time");
      time = seconds[0];
    }
  }
  // Clocks of several processes are not one time line.
  shared.timelines[rank].clear();
  shared.result->is_root = rank == 0;
  shared.result->transport = "mpi";
}

// Joins what the ranks recorded.
void finish_result(const SharedStep& shared, StepResult& result) {
  result.forward_s = median(shared.forward_times);
  result.backward_s = median(shared.backward_times);
  result.forward_fastest_s = *std::min_element(shared.forward_times.begin(), shared.forward_times.end());
  result.backward_fastest_s = *std::min_element(shared.backward_times.begin(), shared.backward_times.end());
  result.forward_cpu_s = median(shared.forward_cpu_times);
  result.backward_cpu_s = median(shared.backward_cpu_times);
  double first = 0;
  for (size_t rank = 0; rank < shared.timelines.size(); ++rank) {
    result.rows_received += shared.forward_traffic[rank].rows_received;
    result.forward_bytes += shared.forward_traffic[rank].bytes_received;
    result.backward_bytes += shared.backward_traffic[rank].bytes_received;
    result.node_rows += shared.forward_node_traffic[rank].rows_received;
    result.node_forward_bytes += shared.forward_node_traffic[rank].bytes_received;
    result.node_backward_bytes += shared.backward_node_traffic[rank].bytes_received;
    for (const TimelineEvent& event : shared.timelines[rank]) {
      first = result.timeline.empty() ? event.begin_s : std::min(first, event.begin_s);
      result.timeline.push_back(event);
    }
  }
  double shares = 0;
  for (const double share : shared.comm_shares) shares += share;
  // Over mpi only this process's entry is there.
  result.comm_share = shared.over_mpi ? shares : shares / static_cast<double>(shared.comm_shares.size());
  result.rows_received /= 2;  // K and V are tensors of their own
  result.node_rows /= 2;
  for (TimelineEvent& event : result.timeline) {
    event.begin_s -= first;
    event.end_s -= first;
  }
}

}  // namespace

int64_t sum_over_ranks(Communicator& communicator, int64_t value) {
  // In parts small enough for exact float32 sums.
  constexpr int kBits = 12;
  constexpr int64_t kMask = (1 << kBits) - 1;
  float parts[] = {static_cast<float>(value & kMask), static_cast<float>((value >> kBits) & kMask),
                   static_cast<float>(value >> (2 * kBits))};
  communicator.all_reduce(parts, ReduceOp::kSum, "traffic");
  return std::llround(parts[0]) + (std::llround(parts[1]) << kBits) + (std::llround(parts[2]) << (2 * kBits));
}

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
  if (control != nullptr) return run_gpu_step(summary, inputs, options, *control);
  const Plan& plan = *summary.plan;
  const size_t cp_size = static_cast<size_t>(plan.cp_size());
  StepResult result = empty_result(plan);
  result.backend = choose_backend(options.backend);
  result.num_threads = threads_per_rank(plan.cp_size());
  SharedStep shared;
  shared.plan = &plan;
  shared.inputs = &inputs;
  shared.result = &result;
  shared.attn = make_attn_options(options);
  shared.num_repeats = options.num_repeats;
  result.ranks_per_node = shared.ranks_per_node = static_cast<int>(options.ranks_per_node);
  shared.timelines.resize(cp_size);
  shared.comm_shares.resize(cp_size);
  shared.forward_traffic.resize(cp_size);
  shared.backward_traffic.resize(cp_size);
  shared.forward_node_traffic.resize(cp_size);
  shared.backward_node_traffic.resize(cp_size);

  ProgressBar bar((1 + kBackwardWeight) * static_cast<double>(plan.mask.area()) *
                  static_cast<double>(options.num_repeats));
  const AttnBackendOptions backend_options{.num_threads = result.num_threads, .host_memory = true};
  shared.over_mpi = MpiGroup::is_launched();
  if (shared.over_mpi) {
    const std::unique_ptr<AttnBackend> backend = make_attn_backend(result.backend, backend_options);
    run_over_mpi(shared, summary.plan, *backend);
  } else {
    // Made before any rank starts, so that one that does not exist is refused once.
    std::vector<std::unique_ptr<AttnBackend>> backends;
    for (size_t rank = 0; rank < cp_size; ++rank) {
      backends.push_back(make_attn_backend(result.backend, backend_options));
    }
    run_local_ranks(plan.cp_size(), [&](Communicator& communicator) {
      const CountingBackend backend(*backends[static_cast<size_t>(communicator.rank())], bar);
      run_rank(shared, summary.plan, communicator, backend);
    });
  }
  finish_result(shared, result);
  return result;
}

}  // namespace tangram::cli
