// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/device_dist_attention.hpp"

#include <optional>

#include "core/require.hpp"
#include "cuda/profile_range.hpp"
#include "cuda/scratch_layout.hpp"
#include "cuda/stream.hpp"
#include "cuda/workspace.hpp"
#include "runtime/device/device_program.hpp"
#include "runtime/pass_plan.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram {

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
  RankContext base;
  DeviceCommunicator* communicator = nullptr;
  CallFacts facts;  // of the plan
  std::unique_ptr<ProgramAttention> program;

  /// Checks the arguments, then runs the pass with memory to compute in.
  template <class Args, class Run>
  void in_workspace(Args args, int64_t needed, void* stream, const Run& run) {
    program->check(args);
    const AttnWorkspace& given = args.workspace;
    require(given.data == nullptr ||
                (given.bytes >= needed && reinterpret_cast<uintptr_t>(given.data) % cuda::kScratchAlignment == 0),
            "DeviceDistAttention: the workspace must have at least {} bytes, aligned to {} (got {} bytes at {})",
            needed, cuda::kScratchAlignment, given.bytes, given.data);
    const CallFacts call = facts_of(facts, *base.plan, args);
    if (Env::get().sanity_check && communicator->size() > 1) {  // before a row moves, not by the epochs
      agree_on_call(communicator->control(), call, "DeviceDistAttention");
    }
    try {
      const SharedFacts shared(*communicator, call);
      std::optional<cuda::Workspace::Lease> lease;
      if (given.data == nullptr && needed > 0) {
        lease.emplace(communicator->workspace().acquire(static_cast<size_t>(needed), cuda::as_stream(stream)));
        args.workspace = {lease->data(), needed};
      }
      run(args);
    } catch (const std::exception& error) {
      // Peers wait for what this rank does not put on its stream, so they are told when it cannot go on.
      communicator->abort(error.what());
      throw;
    }
  }
};

DeviceDistAttention::DeviceDistAttention(std::shared_ptr<const Plan> plan, DeviceCommunicator& communicator,
                                         const AttnBackend& backend, const DeviceDistOptions& options)
    : impl_(std::make_unique<Impl>()) {
  RankContext& base = impl_->base;
  Communicator& control = communicator.control();
  try {
    require(plan != nullptr, "DeviceDistAttention: plan must be given (got null)");
    require(options.max_kept >= 1, "DeviceDistAttention: max_kept must be positive (got {})", options.max_kept);
    device::check_program(*plan, communicator, backend, options);
    base.plan = plan;
    base.communicator = &control;
    base.backend = &backend;
    base.rank = communicator.rank();
    base.shape = rank_shape(*plan, communicator.rank());
    impl_->communicator = &communicator;
    static_cast<void>(backend.tile_shape(base.shape));  // refuses shapes that it cannot do
  } catch (const Error& error) {
    if (communicator.size() > 1) control.refuse(error.what());
    throw;
  }
  impl_->facts = facts_of(*plan);
  agree_on_plan(control, impl_->facts, "DeviceDistAttention");
  agree_on_heads(control, *plan, options.row_sinks, options.result_dtype.value_or(plan->config.heads.dtype));
  try {
    impl_->program = device::make_device_program(base, communicator, options);
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

const Plan& DeviceDistAttention::plan() const { return *impl_->base.plan; }
int DeviceDistAttention::rank() const { return impl_->base.rank; }
int64_t DeviceDistAttention::q_rows() const { return impl_->base.shape.seqlen_q; }
int64_t DeviceDistAttention::k_rows() const { return impl_->base.k_shard_rows(); }
int64_t DeviceDistAttention::device_bytes() const { return impl_->program->device_bytes(); }
int64_t DeviceDistAttention::forward_workspace_bytes() const { return impl_->program->forward_workspace_bytes(); }
int64_t DeviceDistAttention::backward_workspace_bytes() const { return impl_->program->backward_workspace_bytes(); }

void DeviceDistAttention::forward(const DistForwardArgs& given, void* stream) {
  const cuda::ProfileRange range("tangram: distributed forward pass");
  impl_->in_workspace(given, forward_workspace_bytes(), stream,
                      [&](const DistForwardArgs& args) { impl_->program->forward(args, stream); });
}

void DeviceDistAttention::backward(const DistBackwardArgs& given, void* stream) {
  const cuda::ProfileRange range("tangram: distributed backward pass");
  impl_->in_workspace(given, backward_workspace_bytes(), stream,
                      [&](const DistBackwardArgs& args) { impl_->program->backward(args, stream); });
}

}  // namespace tangram
