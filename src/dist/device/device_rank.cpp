// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/device/device_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/require.hpp"
#include "cuda/check.hpp"
#include "dist/pass_plan.hpp"
#include "tangram/error.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram::device {

namespace {

constexpr int kReturnSlots = 2;  // a rank may be one pass ahead of its peers

cuda::DeviceBuffer upload(const std::vector<int32_t>& values) {
  return cuda::DeviceBuffer::copy_of(values.data(), values.size() * sizeof(int32_t));
}

/// `reads_elsewhere`: kernels can read rows of the shard where they lie.
LocalRows make_local_rows(const RankPlan& plan, int rank, int64_t k_rows, bool reads_elsewhere) {
  std::vector<int32_t> shard_rows, buffer_rows, of_shard_row(static_cast<size_t>(k_rows), -1);
  const std::vector<KeyStretch> own = own_stretches(plan, rank);
  LocalRows local;
  if (reads_elsewhere) local.stretches = worth_reading(own, AttnBackend::kStretchBorder);
  for (const KeyStretch& stretch : own) {
    for (int64_t i = 0; i < stretch.keys.size(); ++i) {
      of_shard_row[static_cast<size_t>(stretch.row + i)] = static_cast<int32_t>(stretch.keys.begin + i);
    }
  }
  local.copied = to_copy(own, local.stretches, AttnBackend::kStretchBorder);
  for (const KeyStretch& stretch : local.copied) {
    for (int64_t i = 0; i < stretch.keys.size(); ++i) {
      shard_rows.push_back(static_cast<int32_t>(stretch.row + i));
      buffer_rows.push_back(static_cast<int32_t>(stretch.keys.begin + i));
    }
  }
  local.count = static_cast<int64_t>(shard_rows.size());
  local.shard_rows = upload(shard_rows);
  local.buffer_rows = upload(buffer_rows);
  local.of_shard_row = upload(of_shard_row);
  bool whole = k_rows > 0 && of_shard_row.front() >= 0;
  for (size_t i = 1; whole && i < of_shard_row.size(); ++i) whole = of_shard_row[i] == of_shard_row[i - 1] + 1;
  if (whole) local.whole_shard = Range{of_shard_row.front(), of_shard_row.front() + k_rows};
  return local;
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
                const std::vector<KeyArrival>& late) {
  const AttnBackend& backend = *rank.base.backend;
  const DeviceOverlap overlap = resolve(rank, setup, wanted);
  if (overlap == DeviceOverlap::kStages) {
    std::vector<std::unique_ptr<PreparedMask>> masks = prepare_stages(backend, stages, rank.base.shape);
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
  setup.steps.push_back({prepare_slices(backend, rank.plan().slices, rank.base.shape, arrivals), 0, setup.num_stages});
  backend.prepare_stretches(*setup.steps.back().mask, rank.local.stretches);
}

/// Exchanges of the stages after the first, which has none.
std::vector<Exchange> exchanges_of(const std::vector<Stage>& stages) {
  std::vector<Exchange> exchanges;
  for (size_t stage = 1; stage < stages.size(); ++stage) exchanges.push_back(stages[stage].exchange);
  return exchanges;
}

cuda::DeviceBuffer tensor_memory(DType dtype, int64_t rows, int heads, int dim) {
  return cuda::DeviceBuffer(static_cast<size_t>(rows * heads * dim) * size_of(dtype));
}

/// Whether more than one kernel adds to the results of the rank's queries.
bool adds_up(const PassSetup& setup) {
  return std::any_of(setup.steps.begin() + 1, setup.steps.end(), [](const Step& step) { return step.mask != nullptr; });
}

/// NOTE [settled rows]: own rows that only this rank's queries see, so that no peer adds to their gradients: the kernel
/// writes these where they belong, rounded, and no merge reads them again.
std::vector<char> find_settled_rows(const DeviceRank& rank) {
  std::vector<char> settled(static_cast<size_t>(rank.base.k_shard_rows()), 0);
  const auto mark = [&](const Range& rows, char value) {
    std::fill(settled.begin() + rows.begin, settled.begin() + rows.end, value);
  };
  for (const KeyStretch& own : own_stretches(rank.plan(), rank.base.rank))
    mark({own.row, own.row + own.keys.size()}, 1);
  for (const Exchange& exchange : exchanges_of(rank.plan().backward)) {
    for (const RowCopy& sent : exchange.sends) mark(sent.rows, 0);
  }
  return settled;
}

std::vector<Range> ranges_of(const std::vector<char>& marked) {
  std::vector<Range> ranges;
  for (int64_t row = 0; row < std::ssize(marked); ++row) {
    if (marked[static_cast<size_t>(row)] == 0) continue;
    if (ranges.empty() || ranges.back().end != row) ranges.push_back({row, row});
    ranges.back().end = row + 1;
  }
  return ranges;
}

/// Where the kernel stores the rows of one gradient, by row of the K/V buffer: those of other ranks in the return slot
/// `slot`, of the rank's own those that are settled in the result (NOTE [settled rows]), the others in `local`. Empty
/// where the transport cannot.
std::vector<char*> return_rows(const DeviceRank& rank, int tensor, int slot, const TensorView& local,
                               const std::vector<char>& settled) {
  std::vector<char*> rows(static_cast<size_t>(rank.kv_rows()));
  for (const KvSegment& segment : rank.plan().segments) {
    if (segment.owner != rank.base.rank) continue;
    for (int64_t i = 0; i < segment.global.size(); ++i) {
      const int64_t own = segment.owner_row + i;
      rows[static_cast<size_t>(segment.row + i)] = settled[static_cast<size_t>(own)] != 0
                                                       ? reinterpret_cast<char*>(2 * own + 1)
                                                       : static_cast<char*>(local.data) + own * local.row_bytes();
    }
  }
  for (int stage = 1; stage < rank.backward.num_stages; ++stage) {
    for (const ReturnTarget& target : rank.backward.pass->return_targets(stage - 1, tensor, slot)) {
      for (int64_t i = 0; i < target.partial.size(); ++i) {
        rows[static_cast<size_t>(target.partial.begin + i)] = static_cast<char*>(target.target) + i * local.row_bytes();
      }
    }
  }
  if (std::find(rows.begin(), rows.end(), nullptr) != rows.end()) rows.clear();
  return rows;
}

/// Lets the backward kernel store its results where they belong, if kernel and transport can.
bool prepare_returns(DeviceRank& rank) {
  PassSetup& setup = rank.backward;
  const HeadConfig& heads = rank.heads();
  const DType dtype = rank.base.plan->config.reduce_dtype;
  if (!setup.is_single_launch || (dtype != DType::kFloat32 && dtype != heads.dtype)) return false;
  const int64_t k_rows = rank.base.k_shard_rows();
  const auto bytes = [&](int dim) { return static_cast<size_t>(k_rows * heads.num_heads_kv * dim) * size_of(dtype); };
  // Zeros stay in rows that no query of this rank sees: no kernel writes them.
  cuda::DeviceBuffer dk = cuda::DeviceBuffer::zeros(bytes(heads.head_dim));
  cuda::DeviceBuffer dv = cuda::DeviceBuffer::zeros(bytes(heads.head_dim_v));
  const auto upload_rows = [](const std::vector<char*>& rows) {
    return cuda::DeviceBuffer::copy_of(rows.data(), rows.size() * sizeof(char*));
  };
  std::vector<char> settled = find_settled_rows(rank);
  if (!rank.backward.pass->leave_rows(ranges_of(settled))) std::fill(settled.begin(), settled.end(), 0);
  for (int slot = 0; slot < kReturnSlots; ++slot) {
    const auto dk_rows =
        return_rows(rank, 0, slot, view_of(dk, dtype, k_rows, heads.num_heads_kv, heads.head_dim), settled);
    const auto dv_rows =
        return_rows(rank, 1, slot, view_of(dv, dtype, k_rows, heads.num_heads_kv, heads.head_dim_v), settled);
    if (rank.kv_rows() > 0 && (dk_rows.empty() || dv_rows.empty())) return false;
    setup.dk_rows.push_back(upload_rows(dk_rows));
    setup.dv_rows.push_back(upload_rows(dv_rows));
  }
  rank.dk_local = std::move(dk);
  rank.dv_local = std::move(dv);
  rank.local_dtype = dtype;
  setup.stores_returns = true;
  return true;
}

void allocate(DeviceRank& rank, bool with_backward) {
  const HeadConfig& heads = rank.heads();
  const bool has_landing = rank.forward.num_stages > 1;
  if (!has_landing && !rank.uses_shard) {
    rank.own_k = tensor_memory(heads.dtype, rank.kv_rows(), heads.num_heads_kv, heads.head_dim);
    rank.own_v = tensor_memory(heads.dtype, rank.kv_rows(), heads.num_heads_kv, heads.head_dim_v);
  }
  const DType sums = DType::kFloat32;
  if (adds_up(rank.forward)) rank.out_sum = tensor_memory(sums, rank.q_rows(), heads.num_heads_q, heads.head_dim_v);
  if (!with_backward) return;
  if (adds_up(rank.backward)) rank.dq_sum = tensor_memory(sums, rank.q_rows(), heads.num_heads_q, heads.head_dim);
  if (rank.writes_gradients) return;
  if (prepare_returns(rank)) return;
  rank.dk_part = tensor_memory(sums, rank.kv_rows(), heads.num_heads_kv, heads.head_dim);
  rank.dv_part = tensor_memory(sums, rank.kv_rows(), heads.num_heads_kv, heads.head_dim_v);
  if (rank.backward.num_stages > 1 && !rank.local.whole_shard) {
    rank.dk_local = tensor_memory(sums, rank.base.k_shard_rows(), heads.num_heads_kv, heads.head_dim);
    rank.dv_local = tensor_memory(sums, rank.base.k_shard_rows(), heads.num_heads_kv, heads.head_dim_v);
  }
}

}  // namespace

TensorView view_of(const cuda::DeviceBuffer& buffer, DType dtype, int64_t rows, int heads, int dim) {
  return {{buffer.as<void>(), dtype, rows, heads, dim, int64_t{heads} * dim, dim}};
}

int64_t DeviceRank::workspace_bytes() const {
  size_t bytes = 0;
  for (const cuda::DeviceBuffer* buffer : {&own_k, &own_v, &out_sum, &dq_sum, &dk_part, &dv_part, &dk_local, &dv_local,
                                           &local.shard_rows, &local.buffer_rows, &local.of_shard_row}) {
    bytes += buffer->bytes();
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
  make_steps(rank, rank.forward, plan.forward, options.forward, arrivals_of(plan, self, size, &KvSegment::stage_fwd));
  if (options.with_backward) {
    std::vector<KeyArrival> late;  // none where forward left all keys
    if (!rank.keeps) late = arrivals_of(plan, self, size, &KvSegment::stage_bwd);
    make_steps(rank, rank.backward, plan.backward, options.backward, late);
  }
  allocate(rank, options.with_backward);
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

KvViews gather_rows(DeviceRank& rank, const PassSetup& setup, const ConstTensorView& k, const ConstTensorView& v,
                    cudaStream_t stream) {
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
    k_rows = view_of(rank.own_k, k.dtype, rank.kv_rows(), k.heads, k.dim);
    v_rows = view_of(rank.own_v, v.dtype, rank.kv_rows(), v.heads, v.dim);
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
