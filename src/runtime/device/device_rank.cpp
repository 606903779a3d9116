// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/device_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/require.hpp"
#include "cuda/check.hpp"
#include "runtime/pass_plan.hpp"
#include "tangram/error.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram::device {

namespace {

/// By row of the shard: the row in the K/V buffer, -1 where no query here sees it.
std::vector<int32_t> buffer_rows_of_shard(const std::vector<KeyStretch>& own, int64_t k_rows) {
  std::vector<int32_t> of_shard_row(static_cast<size_t>(k_rows), -1);
  for (const KeyStretch& stretch : own) {
    for (int64_t i = 0; i < stretch.keys.size(); ++i) {
      of_shard_row[static_cast<size_t>(stretch.row + i)] = static_cast<int32_t>(stretch.keys.begin + i);
    }
  }
  return of_shard_row;
}

/// `reads_elsewhere`: kernels can read rows of the shard where they lie.
LocalRows make_local_rows(const RankPlan& plan, int rank, int64_t k_rows, bool reads_elsewhere) {
  const std::vector<KeyStretch> own = own_stretches(plan, rank);
  LocalRows local;
  if (reads_elsewhere) local.stretches = worth_reading(own, AttnBackend::kStretchBorder);
  local.copied = to_copy(own, local.stretches, AttnBackend::kStretchBorder);
  for (const KeyStretch& stretch : local.copied) local.count += stretch.keys.size();
  const std::vector<int32_t> of_shard_row = buffer_rows_of_shard(own, k_rows);
  bool whole = k_rows > 0 && of_shard_row.front() >= 0;
  for (size_t i = 1; whole && i < of_shard_row.size(); ++i) whole = of_shard_row[i] == of_shard_row[i - 1] + 1;
  if (whole) local.whole_shard = Range{of_shard_row.front(), of_shard_row.front() + k_rows};
  return local;
}

/// The maps that the passes as prepared will read.
void upload_maps(DeviceRank& rank, bool with_backward) {
  LocalRows& local = rank.local;
  const bool copies_rows = rank.forward.pass == nullptr || (with_backward && rank.backward.pass == nullptr);
  if (copies_rows && !rank.uses_shard) {
    std::vector<int32_t> shard_rows, buffer_rows;
    for (const KeyStretch& stretch : local.copied) {
      for (int64_t i = 0; i < stretch.keys.size(); ++i) {
        shard_rows.push_back(static_cast<int32_t>(stretch.row + i));
        buffer_rows.push_back(static_cast<int32_t>(stretch.keys.begin + i));
      }
    }
    local.shard_rows = cuda::DeviceBuffer::copy_of(shard_rows);
    local.buffer_rows = cuda::DeviceBuffer::copy_of(buffer_rows);
  }
  if (with_backward && !rank.writes_gradients && !rank.backward.stores_returns) {
    local.of_shard_row = cuda::DeviceBuffer::copy_of(
        buffer_rows_of_shard(own_stretches(rank.plan(), rank.base.rank), rank.base.k_shard_rows()));
  }
}

/// The rows that other ranks send in a pass, in the order in which they come: stage by stage, and in each from the rank
/// before this one, the one before that, and so on.
std::vector<KeyArrival> arrivals_of(const RankPlan& plan, int rank, int size, int KvSegment::* stage_of) {
  struct Coming {
    int stage;
    int distance;
    KeyArrival arrival;
  };
  std::vector<Coming> coming;
  for (const KvSegment& segment : plan.segments) {
    if (segment.owner == rank) continue;
    const int stage = segment.*stage_of - 1;
    coming.push_back({stage,
                      (rank - segment.owner + size) % size,
                      {{segment.row, segment.row + segment.global.size()}, stage * size + segment.owner}});
  }
  std::stable_sort(coming.begin(), coming.end(), [](const Coming& a, const Coming& b) {
    return std::pair(a.stage, a.distance) < std::pair(b.stage, b.distance);
  });
  std::vector<KeyArrival> arrivals;
  for (const Coming& next : coming) arrivals.push_back(next.arrival);
  return arrivals;
}

/// What kAuto comes to; throws NotAvailable where one kernel is wanted that cannot wait.
DeviceOverlap resolve(const DeviceRank& rank, const PassSetup& setup, DeviceOverlap wanted) {
  if (wanted != DeviceOverlap::kAuto && wanted != DeviceOverlap::kSingleLaunch) return wanted;
  if (setup.pass == nullptr) return DeviceOverlap::kNone;
  const int num_flags = (setup.num_stages - 1) * rank.communicator->size();
  const bool can =
      rank.base.backend->can_wait_for_keys() && setup.pass->has_arrivals() && num_flags <= AttnBackend::kMaxKeyFlags;
  if (wanted == DeviceOverlap::kAuto) {
    return can && !rank.shares_gpu ? DeviceOverlap::kSingleLaunch : DeviceOverlap::kStages;
  }
  if (can) return DeviceOverlap::kSingleLaunch;
  throw NotAvailable(
      fmt::format("DeviceDistAttention: single_launch needs a transport with arrival flags, a backend that waits for "
                  "them, and at most {} stages times ranks (got {}, {}, {})",
                  AttnBackend::kMaxKeyFlags, rank.communicator->name(), rank.base.backend->name(), num_flags));
}

/// The kernel calls of a pass. `late`: the keys that come during it.
void make_steps(DeviceRank& rank, PassSetup& setup, const std::vector<Stage>& stages, DeviceOverlap wanted,
                const std::vector<KeyArrival>& late, AttnPasses passes) {
  const AttnBackend& backend = *rank.base.backend;
  const DeviceOverlap overlap = resolve(rank, setup, wanted);
  if (overlap == DeviceOverlap::kStages) {
    std::vector<std::unique_ptr<PreparedMask>> masks = prepare_stages(backend, stages, rank.base.shape, passes);
    for (int stage = 0; stage < setup.num_stages; ++stage) {
      setup.steps.push_back({std::move(masks[static_cast<size_t>(stage)]), stage, stage + 1});
      const Step& step = setup.steps.back();
      if (step.mask != nullptr) backend.prepare_stretches(*step.mask, rank.local.stretches);
    }
    return;
  }
  setup.is_single_launch = overlap == DeviceOverlap::kSingleLaunch;
  setup.waits_in_kernel = setup.is_single_launch && !late.empty();
  const std::span<const KeyArrival> arrivals = setup.waits_in_kernel ? late : std::span<const KeyArrival>{};
  setup.steps.push_back(
      {prepare_slices(backend, rank.plan().slices, rank.base.shape, arrivals, passes), 0, setup.num_stages});
  backend.prepare_stretches(*setup.steps.back().mask, rank.local.stretches);
}

/// Exchanges of the stages after the first, which has none.
std::vector<Exchange> exchanges_of(const std::vector<Stage>& stages) {
  std::vector<Exchange> exchanges;
  for (size_t stage = 1; stage < stages.size(); ++stage) exchanges.push_back(stages[stage].exchange);
  return exchanges;
}

}  // namespace

int64_t DeviceRank::device_bytes() const {
  size_t bytes = local.shard_rows.bytes() + local.buffer_rows.bytes() + local.of_shard_row.bytes();
  for (const PassSetup* setup : {&forward, &backward}) {
    bytes += setup->returns.device_bytes();
    if (setup->pass != nullptr) bytes += static_cast<size_t>(setup->pass->own_bytes());
    for (const Step& step : setup->steps) {
      if (step.mask != nullptr) bytes += static_cast<size_t>(step.mask->device_bytes());
    }
  }
  return static_cast<int64_t>(bytes);
}

void prepare_layout(DeviceRank& rank, const DeviceDistOptions& options) {
  const RankPlan& plan = rank.plan();
  rank.forward.num_stages = static_cast<int>(plan.forward.size());
  rank.backward.num_stages = static_cast<int>(plan.backward.size());
  rank.keeps = plan.backward.back().kept && options.with_backward;
  const bool alone = plan.forward.size() == 1 && plan.backward.size() == 1;
  rank.uses_shard = alone && plan.segments.size() <= 1;
  const bool reads_elsewhere = rank.base.backend->can_read_elsewhere() && !rank.uses_shard;
  rank.local = make_local_rows(plan, rank.base.rank, rank.base.k_shard_rows(), reads_elsewhere);
  rank.writes_gradients = rank.uses_shard && rank.local.whole_shard;
}

namespace {

/// Throws NotAvailable, alike on all ranks, for copy engines where another transport moves rows.
LaunchOrder resolve_launch_order(const DeviceRank& rank) {
  const LaunchOrder wanted = rank.base.plan->config.overlap.launch_order;
  const bool has_engines = rank.communicator->name() == to_string(DeviceTransport::kCopyEngine);
  if (wanted == LaunchOrder::kAuto) return has_engines ? LaunchOrder::kCopyEngine : LaunchOrder::kSmMargin;
  if (wanted == LaunchOrder::kCopyEngine && !has_engines) {
    throw NotAvailable(
        fmt::format("DeviceDistAttention: launch_order copy_engine needs the transport copy_engine (got {})",
                    rank.communicator->name()));
  }
  return wanted;
}

/// Whether another rank of this host has the same GPU. Collective.
bool shares_gpu(DeviceCommunicator& communicator) {
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, communicator.device()), "cudaGetDeviceProperties");
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : properties.uuid.bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  // Each rank adds its own number to zeros. Numbers below 2^24 are exact; GPUs that meet by chance only lose speed.
  std::vector<float> numbers(static_cast<size_t>(communicator.size()));
  const float own = static_cast<float>(hash >> 40);
  numbers[static_cast<size_t>(communicator.rank())] = own;
  communicator.control().all_reduce(numbers, ReduceOp::kSum, "GPUs of the ranks");
  return std::count(numbers.begin(), numbers.end(), own) > 1;
}

}  // namespace

void prepare_passes(DeviceRank& rank, const DeviceDistOptions& options) {
  rank.launch_order = resolve_launch_order(rank);
  rank.shares_gpu = shares_gpu(*rank.communicator);
  const HeadConfig& heads = rank.heads();
  const LandingTensor k{rank.kv_rows(), heads.num_heads_kv, heads.head_dim, heads.dtype};
  const LandingTensor v{rank.kv_rows(), heads.num_heads_kv, heads.head_dim_v, heads.dtype};
  if (rank.plan().forward.size() > 1) {
    DevicePassSpec spec;
    spec.label = "forward";
    spec.shares_memory = true;
    spec.casts = exchanges_of(rank.plan().forward);
    spec.landing = {k, v};
    spec.own_rows = rank.local.copied;
    spec.num_slots = 2 + (rank.keeps ? options.max_kept : 0);
    rank.forward.pass = rank.communicator->prepare_pass(spec);
  }
  if (!options.with_backward || rank.plan().backward.size() <= 1) return;
  const int64_t owned_rows = rank.base.k_shard_rows();
  const DType dtype = rank.base.plan->config.reduce_dtype;
  DevicePassSpec spec;
  spec.label = "backward";
  spec.shares_memory = true;
  spec.landing = {k, v};
  spec.own_rows = rank.local.copied;
  if (!rank.keeps) spec.casts = exchanges_of(rank.plan().backward);
  spec.reduces = exchanges_of(rank.plan().backward);
  for (const int dim : {heads.head_dim, heads.head_dim_v}) {
    spec.returns.push_back({.partial_rows = rank.kv_rows(),
                            .owned_rows = owned_rows,
                            .heads = heads.num_heads_kv,
                            .dim = dim,
                            .partial_dtype = DType::kFloat32,
                            .reduce_dtype = dtype});
  }
  // One pass at a time is open, so both may land in the same memory.
  spec.landing_of = rank.forward.pass;
  spec.num_return_slots = kReturnSlots;
  rank.backward.pass = rank.communicator->prepare_pass(spec);
}

void prepare_masks(DeviceRank& rank, const DeviceDistOptions& options) {
  const RankPlan& plan = rank.plan();
  const int self = rank.base.rank, size = rank.communicator->size();
  make_steps(rank, rank.forward, plan.forward, options.forward, arrivals_of(plan, self, size, &KvSegment::stage_fwd),
             AttnPasses::kForward);
  if (options.with_backward) {
    std::vector<KeyArrival> late;  // none where forward left all keys
    if (!rank.keeps) late = arrivals_of(plan, self, size, &KvSegment::stage_bwd);
    make_steps(rank, rank.backward, plan.backward, options.backward, late, AttnPasses::kBackward);
    if (!rank.writes_gradients) prepare_returns(rank);
  }
  upload_maps(rank, options.with_backward);
  rank.forward_bytes = place_forward(rank, nullptr).bytes;
  if (options.with_backward) rank.backward_bytes = place_backward(rank, nullptr).bytes;
}

AttnOptions beside_transfers(const DeviceRank& rank, const PassSetup& setup, AttnOptions options) {
  if (rank.launch_order != LaunchOrder::kSmMargin || setup.pass == nullptr) return options;
  const int configured = rank.base.plan->config.overlap.sm_margin;
  options.sm_margin = std::max(options.sm_margin, configured > 0 ? configured : setup.pass->transfer_sms());
  return options;
}

void start_transfers_first(const DeviceRank& rank, const PassSetup& setup, int stage, cudaStream_t stream) {
  if (rank.launch_order != LaunchOrder::kKernelBarrier || setup.pass == nullptr || stage >= setup.num_stages) return;
  setup.pass->wait_started(stage - 1, stream);
}

KvViews kept_rows(const DeviceRank& rank, int slot, const ConstTensorView& k, const ConstTensorView& v) {
  const DevicePass& pass = *rank.forward.pass;
  if (rank.local.stretches.empty()) return {pass.landing(0, slot), pass.landing(1, slot), {}, {}};
  return {pass.landing(0, slot), pass.landing(1, slot), k, v};
}

KvViews gather_rows(DeviceRank& rank, const PassSetup& setup, const RankScratch& scratch, const ConstTensorView& k,
                    const ConstTensorView& v, cudaStream_t stream) {
  if (rank.uses_shard) {
    const int64_t first = rank.plan().segments.empty() ? 0 : rank.plan().segments.front().owner_row;
    return {slice_rows(k, {first, first + rank.kv_rows()}), slice_rows(v, {first, first + rank.kv_rows()}), {}, {}};
  }
  TensorView k_rows, v_rows;
  if (setup.pass != nullptr) {
    // Rows of all stages are sent at once: the link carries one after the other, and nothing may be posted behind
    // kernels of this rank that wait for a peer which waits for them.
    const ConstTensorView sources[] = {k, v};
    const int slot = setup.pass->begin(sources, stream);
    for (int stage = 1; stage < setup.num_stages; ++stage) setup.pass->cast(stage - 1, sources, stream);
    k_rows = setup.pass->landing(0, slot);
    v_rows = setup.pass->landing(1, slot);
  } else {
    k_rows = scratch.own_k;
    v_rows = scratch.own_v;
    const auto* from = rank.local.shard_rows.as<int32_t>();
    const auto* to = rank.local.buffer_rows.as<int32_t>();
    const RowJob jobs[] = {{k, {}, k_rows, from, nullptr, to, rank.local.count},
                           {v, {}, v_rows, from, nullptr, to, rank.local.count}};
    run_row_jobs(jobs, stream);
  }
  if (rank.local.stretches.empty()) return {k_rows, v_rows, {}, {}};
  return {k_rows, v_rows, k, v};
}

}  // namespace tangram::device
