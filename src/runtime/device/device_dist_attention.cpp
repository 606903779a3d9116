// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/device_dist_attention.hpp"

#include <algorithm>
#include <optional>

#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/scratch_layout.hpp"
#include "cuda/stream.hpp"
#include "cuda/workspace.hpp"
#include "runtime/device/device_program.hpp"
#include "runtime/device/device_rank.hpp"
#include "runtime/pass_plan.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

void check_rows(const char* function, const char* name, const ConstTensorView& view) {
  require(view.head_stride == view.dim && view.row_stride >= int64_t{view.heads} * view.dim,
          "{}: rows of {} must be contiguous (got row_stride={}, head_stride={} for {})", function, name,
          view.row_stride, view.head_stride, shape_text(view));
}

void check_contiguous(const char* function, const char* name, const ConstTensorView& view) {
  require(view.contiguous(), "{}: {} must be contiguous (got row_stride={}, head_stride={} for {})", function, name,
          view.row_stride, view.head_stride, shape_text(view));
}

void check_kept(const char* function, const device::DeviceRank& rank, bool given) {
  require(given == rank.keeps, "{}: kept must be given where the plan keeps remote K/V, and only there (got {})",
          function, given ? "one" : "null");
}

void check(const device::DeviceRank& rank, DistForwardArgs args) {
  const char* function = "DeviceDistAttention::forward";
  check_kept(function, rank, args.kept != nullptr);
  args.kept = nullptr;
  validate(rank.base, args);
  check_rows(function, "k", args.k);
  check_rows(function, "v", args.v);
}

void check(const device::DeviceRank& rank, DistBackwardArgs args) {
  const char* function = "DeviceDistAttention::backward";
  require(!rank.backward.steps.empty(), "{}: must be prepared (got with_backward=false)", function);
  check_kept(function, rank, args.kept != nullptr);
  if (args.kept != nullptr) {
    require(args.kept->valid && std::ranges::find(rank.kept_slots, args.kept->device_slot) != rank.kept_slots.end(),
            "{}: kept must be what a forward pass of this object left, used once (got slot={})", function,
            args.kept->device_slot);
  }
  args.kept = nullptr;
  validate(rank.base, args);
  check_rows(function, "k", args.k);
  check_rows(function, "v", args.v);
  check_contiguous(function, "dk", args.dk);
  check_contiguous(function, "dv", args.dv);
  const int64_t sinks = args.dsink == nullptr ? 0 : args.sink.seqlen_sink * args.q.heads;
  require(args.sink.layout == SinkLayout::kSsh || sinks <= DeviceCommunicator::kMaxReduceValues,
          "{}: dsink must have at most {} values (got {})", function, DeviceCommunicator::kMaxReduceValues, sinks);
}

}  // namespace

std::string_view to_string(DeviceOverlap overlap) {
  switch (overlap) {
    case DeviceOverlap::kAuto: return "auto";
    case DeviceOverlap::kSingleLaunch: return "single_launch";
    case DeviceOverlap::kStages: return "stages";
    case DeviceOverlap::kNone: return "none";
  }
  return "unknown";
}

class DeviceDistAttention::Impl {
 public:
  device::DeviceRank rank;
  CallFacts facts;                            // of the plan
  std::unique_ptr<ProgramAttention> program;  // where one runs, which uses nothing of `rank` but its base

  /// Checks the arguments, then runs the pass with memory to compute in.
  template <class Args, class Run>
  void in_workspace(Args args, int64_t needed, void* stream, const Run& run) {
    if (program != nullptr) {
      program->check(args);
    } else {
      check(rank, args);
    }
    const AttnWorkspace& given = args.workspace;
    require(given.data == nullptr ||
                (given.bytes >= needed && reinterpret_cast<uintptr_t>(given.data) % cuda::kScratchAlignment == 0),
            "DeviceDistAttention: the workspace must have at least {} bytes, aligned to {} (got {} bytes at {})",
            needed, cuda::kScratchAlignment, given.bytes, given.data);
    pass([&] {
      const SharedFacts shared(*rank.communicator, facts_of(facts, *rank.base.plan, args));
      std::optional<cuda::Workspace::Lease> lease;
      if (given.data == nullptr && needed > 0) {
        lease.emplace(rank.communicator->workspace().acquire(static_cast<size_t>(needed), cuda::as_stream(stream)));
        args.workspace = {lease->data(), needed};
      }
      run(args);
    });
  }

  /// Peers wait for what this rank does not put on its stream, so they are told when it cannot go on.
  template <class Run>
  void pass(Run run) {
    try {
      run();
    } catch (const std::exception& error) {
      rank.communicator->abort(error.what());
      throw;
    }
  }
};

DeviceDistAttention::DeviceDistAttention(std::shared_ptr<const Plan> plan, DeviceCommunicator& communicator,
                                         const AttnBackend& backend, const DeviceDistOptions& options)
    : impl_(std::make_unique<Impl>()) {
  device::DeviceRank& rank = impl_->rank;
  Communicator& control = communicator.control();
  try {
    require(plan != nullptr, "DeviceDistAttention: plan must be given (got null)");
    require(options.max_kept >= 1, "DeviceDistAttention: max_kept must be positive (got {})", options.max_kept);
    if (device::runs_program(*plan)) {
      device::check_program(*plan, communicator, backend, options);
    } else {
      check_plan("DeviceDistAttention", *plan, communicator.size());
    }
    rank.base.plan = plan;
    rank.base.communicator = &control;
    rank.base.backend = &backend;
    rank.base.rank = communicator.rank();
    rank.base.shape = rank_shape(*plan, communicator.rank());
    rank.communicator = &communicator;
    static_cast<void>(backend.tile_shape(rank.base.shape));  // refuses shapes that it cannot do
    if (!device::runs_program(*plan)) device::prepare_layout(rank, options);
  } catch (const Error& error) {
    if (communicator.size() > 1) control.refuse(error.what());
    throw;
  }
  impl_->facts = facts_of(*plan);
  agree_on_plan(control, impl_->facts, "DeviceDistAttention");
  agree_on_heads(control, *plan, options.row_sinks, options.result_dtype.value_or(plan->config.heads.dtype));
  if (!device::runs_program(*plan)) device::prepare_passes(rank, options);
  try {
    if (device::runs_program(*plan)) {
      impl_->program = device::make_device_program(rank.base, communicator, options);
    } else {
      device::prepare_masks(rank, options);
    }
  } catch (const std::exception& error) {
    communicator.abort(error.what());
    if (communicator.size() > 1) control.refuse(error.what());
    throw;
  }
  // Where ranks share a GPU, allocating waits for all that runs there: nobody may launch a kernel that waits for a rank
  // which is still allocating.
  control.barrier("DeviceDistAttention: ready");
}

DeviceDistAttention::~DeviceDistAttention() = default;
DeviceDistAttention::DeviceDistAttention(DeviceDistAttention&&) noexcept = default;
DeviceDistAttention& DeviceDistAttention::operator=(DeviceDistAttention&&) noexcept = default;

const Plan& DeviceDistAttention::plan() const { return *impl_->rank.base.plan; }
int DeviceDistAttention::rank() const { return impl_->rank.base.rank; }
int64_t DeviceDistAttention::q_rows() const { return impl_->rank.q_rows(); }
int64_t DeviceDistAttention::k_rows() const { return impl_->rank.base.k_shard_rows(); }
int64_t DeviceDistAttention::device_bytes() const {
  return impl_->program != nullptr ? impl_->program->device_bytes() : impl_->rank.device_bytes();
}
int64_t DeviceDistAttention::forward_workspace_bytes() const {
  return impl_->program != nullptr ? impl_->program->forward_workspace_bytes() : impl_->rank.forward_bytes;
}
int64_t DeviceDistAttention::backward_workspace_bytes() const {
  return impl_->program != nullptr ? impl_->program->backward_workspace_bytes() : impl_->rank.backward_bytes;
}

void DeviceDistAttention::forward(const DistForwardArgs& given, void* stream) {
  const cuda::ProfileRange range("tangram: distributed forward pass");
  impl_->in_workspace(given, forward_workspace_bytes(), stream, [&](const DistForwardArgs& args) {
    if (impl_->program != nullptr) return impl_->program->forward(args, stream);
    device::run_forward(impl_->rank, args, cuda::as_stream(stream));
  });
}

void DeviceDistAttention::backward(const DistBackwardArgs& given, void* stream) {
  const cuda::ProfileRange range("tangram: distributed backward pass");
  impl_->in_workspace(given, backward_workspace_bytes(), stream, [&](const DistBackwardArgs& args) {
    if (impl_->program != nullptr) return impl_->program->backward(args, stream);
    device::run_backward(impl_->rank, args, cuda::as_stream(stream));
  });
}

}  // namespace tangram
