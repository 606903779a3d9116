// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/device_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"
#include "cuda/list_memory.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/scratch_layout.hpp"
#include "cuda/stream.hpp"
#include "cuda/workspace.hpp"
#include "plan/program/emit.hpp"
#include "runtime/device/owner_kernels.hpp"
#include "runtime/device/program_attention.hpp"
#include "runtime/device/row_kernels.hpp"
#include "runtime/gpu_target.hpp"
#include "runtime/pass_plan.hpp"
#include "runtime/rows.hpp"
#include "tangram/error.hpp"

namespace tangram::device {

namespace {

void sum_rows(std::span<const RowSum> sums, void* stream) {
  std::vector<RowJob> jobs;
  for (const RowSum& sum : sums) {
    jobs.push_back({sum.source, sum.addend, sum.result, nullptr, sum.addend_rows.rows, nullptr, sum.result.rows,
                    sum.addend_rows.begins});
  }
  for (size_t first = 0; first < jobs.size(); first += kMaxRowJobs) {
    run_row_jobs(std::span(jobs).subspan(first, std::min<size_t>(kMaxRowJobs, jobs.size() - first)),
                 cuda::as_stream(stream));
  }
}

bool look_for_nan(const ConstTensorView& view, void* stream) {
  if (cuda::is_captured(cuda::as_stream(stream)) || view.empty()) return false;
  const auto row_bytes = static_cast<size_t>(view.row_bytes());
  HostTensor rows(view.dtype, view.rows, view.heads, view.dim);
  cuda::check(cudaMemcpy2DAsync(rows.view().data, row_bytes, view.data,
                                static_cast<size_t>(view.row_stride) * size_of(view.dtype), row_bytes,
                                static_cast<size_t>(view.rows), cudaMemcpyDeviceToHost, cuda::as_stream(stream)),
              "cudaMemcpy2DAsync");
  cuda::check(cudaStreamSynchronize(cuda::as_stream(stream)), "cudaStreamSynchronize");
  return has_nan(rows);
}

class KeptInLists final : public KeptMemory {
 public:
  KeptInLists(size_t bytes, const std::function<void(std::byte*)>& write)
      : block_(cuda::ListMemory::of_current_device().fill(bytes, write)) {}
  const void* data() const override { return block_.data(); }
  void before_call(void* stream) const override { block_.before_call(cuda::as_stream(stream)); }

 private:
  const cuda::ListBlock block_;
};

ProgramDevice program_device() {
  ProgramDevice device;
  device.sum_rows = sum_rows;
  device.copy_floats = [](std::span<const FloatCopy> copies, void* stream) {
    device::copy_floats(copies, cuda::as_stream(stream));
  };
  device.fill = [](void* data, int byte, int64_t num_bytes, void* stream) {
    cuda::check(cudaMemsetAsync(data, byte, static_cast<size_t>(num_bytes), cuda::as_stream(stream)),
                "cudaMemsetAsync");
  };
  device.has_nan = look_for_nan;
  device.scale = [](float* values, int64_t count, float factor, void* stream) {
    scale_values(values, count, factor, cuda::as_stream(stream));
  };
  device.find_delta = [](const ConstTensorView& out, const ConstTensorView& dout, const TensorView& delta,
                         void* stream) { device::find_delta(out, dout, delta, cuda::as_stream(stream)); };
  device.merge = [](const RowMerge& merge, void* stream) { merge_rows(merge, cuda::as_stream(stream)); };
  device.find_dsink = [](const SinkGradient& of, void* stream) { device::find_dsink(of, cuda::as_stream(stream)); };
  device.find_maxima = [](const ColumnMaxima& of, void* stream) { device::find_maxima(of, cuda::as_stream(stream)); };
  device.keep = [](size_t bytes, const std::function<void(std::byte*)>& write) {
    return std::make_shared<const KeptInLists>(bytes, write);
  };
  return device;
}

/// Throws NotAvailable, alike on all ranks, for copy engines where another transport moves rows.
LaunchOrder resolve_launch_order(const Plan& plan, const DeviceCommunicator& communicator) {
  const LaunchOrder wanted = plan.config.overlap.launch_order;
  const bool has_engines = communicator.name() == to_string(DeviceTransport::kCopyEngine);
  if (wanted == LaunchOrder::kAuto) return has_engines ? LaunchOrder::kCopyEngine : LaunchOrder::kSmMargin;
  if (wanted == LaunchOrder::kCopyEngine && !has_engines) {
    throw NotAvailable(fmt::format("DistAttention: launch_order copy_engine needs the transport copy_engine (got {})",
                                   communicator.name()));
  }
  return wanted;
}

/// Whether two ranks of this host have one GPU, so that a kernel of one that waits would keep those of the other out.
/// Collective where the communicator does not know.
bool share_gpus(DeviceCommunicator& communicator) {
  if (const std::optional<bool> known = communicator.shares_gpus()) return *known;
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, communicator.device()), "cudaGetDeviceProperties");
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : properties.uuid.bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  // Each rank adds its own number to zeros. Numbers below 2^24 are exact; GPUs that meet by chance only lose speed.
  std::vector<float> numbers(static_cast<size_t>(communicator.size()));
  numbers[static_cast<size_t>(communicator.rank())] = static_cast<float>(hash >> 40);
  communicator.control().all_reduce(numbers, ReduceOp::kSum, "GPUs of the ranks");
  std::sort(numbers.begin(), numbers.end());
  return std::adjacent_find(numbers.begin(), numbers.end()) != numbers.end();
}

/// Whether all ranks' attention is fastest on keys that have come: each rank knows the work of all.
bool want_all_keys(const RankContext& base) {
  for (int rank = 0; rank < base.plan->cp_size(); ++rank) {
    const RankPlan& of = base.plan->ranks()[static_cast<size_t>(rank)];
    const std::span<const AttnSlice> slices = of.slices;
    const MaskPart part =
        base.backend->backward_part({&slices, 1}, rank_shape(*base.plan, rank), {.plain = true, .awaits_keys = true});
    if (part != MaskPart::kBackwardSparse) return false;
  }
  return true;
}

/// Collective where the communicator does not know who shares GPUs.
GpuAbilities abilities_of(const RankContext& base, DeviceCommunicator& communicator) {
  const AttnCaps caps = base.backend->caps();
  GpuAbilities abilities;
  abilities.transfers = communicator.kernel_transfers();
  abilities.transport = communicator.name();
  abilities.backend = caps.name;
  if (!moves_kv_alone(*base.plan)) return abilities;
  abilities.max_ready_flags = caps.max_ready_flags;
  abilities.local_kv_halo = caps.local_kv_halo;
  abilities.shares_gpus = share_gpus(communicator);
  abilities.wants_all_keys = want_all_keys(base);
  return abilities;
}

/// Options of programs over these ranks. Collective.
ProgramOptions program_options(const RankContext& base, DeviceCommunicator& communicator,
                               const DistAttentionOptions& options) {
  const Plan& plan = *base.plan;
  const int sm_margin = plan.config.overlap.sm_margin;
  const LaunchOrder order = resolve_launch_order(plan, communicator);
  const bool by_calls = moves_kv_alone(plan);  // which say when they wait
  ProgramOptions how;
  how.result_dtype = options.result_dtype.value_or(plan.config.heads.dtype);
  how.grad_dtype = options.grad_dtype;
  how.row_sinks = options.row_sinks;
  how.with_backward = options.with_backward;
  how.max_kept = options.max_kept;
  how.overlaps_forward = by_calls || options.forward != DeviceOverlap::kNone;
  how.overlaps_backward = by_calls || options.backward != DeviceOverlap::kNone;
  how.margin_beside_transfers = order != LaunchOrder::kSmMargin ? 0 : sm_margin > 0 ? sm_margin : -1;
  how.starts_transfers_first = order == LaunchOrder::kKernelBarrier;
  how.target = gpu_target(plan, base.rank, abilities_of(base, communicator), options.forward, options.backward,
                          options.with_backward);
  return how;
}

class DeviceAttention final : public PlanExecutor {
 public:
  DeviceAttention(RankContext& base, DeviceCommunicator& communicator, const DistAttentionOptions& options)
      : base_(base),
        communicator_(communicator),
        program_(base, communicator, program_device(), program_options(base, communicator, options)) {
    load_row_kernels();
    load_owner_kernels();
  }

  void forward(const DistForwardArgs& given, void* stream) override {
    const cuda::ProfileRange range("tangram: distributed forward pass");
    in_workspace(given, forward_workspace_bytes(), stream,
                 [&](const DistForwardArgs& args) { program_.forward(args, stream); });
  }
  void backward(const DistBackwardArgs& given, void* stream) override {
    const cuda::ProfileRange range("tangram: distributed backward pass");
    in_workspace(given, backward_workspace_bytes(), stream,
                 [&](const DistBackwardArgs& args) { program_.backward(args, stream); });
  }
  bool met_peers() const override { return program_.meets_peers(); }
  int64_t device_bytes() const override { return program_.device_bytes(); }
  int64_t forward_workspace_bytes() const override { return program_.forward_workspace_bytes(); }
  int64_t backward_workspace_bytes() const override { return program_.backward_workspace_bytes(); }

 private:
  /// Checks the arguments, then runs the pass with memory to compute in.
  template <class Args, class Run>
  void in_workspace(Args args, int64_t needed, void* stream, const Run& run) {
    program_.check(args);
    const AttnWorkspace& given = args.workspace;
    require(given.data == nullptr ||
                (given.bytes >= needed && reinterpret_cast<uintptr_t>(given.data) % cuda::kScratchAlignment == 0),
            "DistAttention: the workspace must have at least {} bytes, aligned to {} (got {} bytes at {})", needed,
            cuda::kScratchAlignment, given.bytes, given.data);
    program_.compare(args);
    try {
      const SharedFingerprint shared(communicator_, fingerprint_of(base_.fingerprint, *base_.plan, args));
      std::optional<cuda::Workspace::Lease> lease;
      if (given.data == nullptr && needed > 0) {
        lease.emplace(communicator_.workspace().acquire(static_cast<size_t>(needed), cuda::as_stream(stream)));
        args.workspace = {lease->data(), needed};
      }
      run(args);
    } catch (const std::exception& error) {
      // Peers wait for what this rank does not put on its stream, so they are told when it cannot go on.
      communicator_.abort(error.what());
      throw;
    }
  }

  RankContext& base_;
  DeviceCommunicator& communicator_;
  ProgramAttention program_;
};

}  // namespace

void check_attention(const RankContext& base, const DeviceCommunicator& communicator,
                     const DistAttentionOptions& options) {
  const Plan& plan = *base.plan;
  require(options.max_kept >= 1, "DistAttention: max_kept must be positive (got {})", options.max_kept);
  const HeadConfig& heads = plan.config.heads;
  require(heads.head_dim % 8 == 0 && heads.head_dim_v % 8 == 0,
          "DistAttention: dims of heads must be multiples of 8 (got {} and {})", heads.head_dim, heads.head_dim_v);
  require(options.row_sinks >= 0, "DistAttention: row_sinks must not be negative (got {})", options.row_sinks);
  for (const auto& [name, dtype] :
       {std::pair{"result_dtype", options.result_dtype}, {"grad_dtype", options.grad_dtype}}) {
    require(!dtype || *dtype == heads.dtype || *dtype == DType::kFloat32,
            "DistAttention: {} must be float32 or that of the heads, {} (got {})", name, to_string(heads.dtype),
            to_string(dtype.value_or(heads.dtype)));
  }
  static_cast<void>(resolve_launch_order(plan, communicator));
  base.backend->check(base.shape);
  if (moves_kv_alone(plan)) return;
  for (const DeviceOverlap wanted : {options.forward, options.backward}) {
    if (wanted != DeviceOverlap::kSingleLaunch) continue;
    const std::string by = plan.grid() != nullptr
                               ? fmt::format("strategy {}", to_string(plan.config.strategy.name))
                               : fmt::format("movement {}", to_string(plan.config.movement.algorithm));
    throw NotAvailable(fmt::format("DistAttention: single_launch is for plans that move K/V alone (got {})", by));
  }
}

std::unique_ptr<PlanExecutor> make_attention(RankContext& base, DeviceCommunicator& communicator,
                                             const DistAttentionOptions& options) {
  Communicator& control = communicator.control();
  const bool alone = moves_kv_alone(*base.plan) && communicator.agreement() != nullptr;
  if (!alone && communicator.agreement() != nullptr) {
    communicator.agreement()->meet();
    // What follows allocates while peers wait for this rank.
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  const DType result_dtype = options.result_dtype.value_or(base.plan->config.heads.dtype);
  agree_on_heads(control, *base.plan, options.row_sinks, result_dtype, options.grad_dtype.value_or(result_dtype));
  std::unique_ptr<PlanExecutor> attention;
  try {
    attention = std::make_unique<DeviceAttention>(base, communicator, options);
  } catch (const std::exception& error) {
    communicator.abort(error.what());
    if (!alone && communicator.size() > 1) control.refuse(error.what());
    throw;
  }
  // If ranks share a GPU, allocating waits for all its kernels. No rank may launch a kernel that waits for a rank which
  // is still allocating.
  if (!alone) control.barrier("DistAttention: ready");
  return attention;
}

}  // namespace tangram::device
