// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/dist_attention.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/require.hpp"
#include "plan/program/emit.hpp"
#include "runtime/device/device_attention.hpp"
#include "runtime/pass_plan.hpp"
#include "runtime/plan_executor.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram {

std::string_view to_string(TraceKind kind) {
  switch (kind) {
    case TraceKind::kCopyLocal: return "copy_local";
    case TraceKind::kPostCast: return "post_cast";
    case TraceKind::kWaitCast: return "wait_group_cast";
    case TraceKind::kTransferCast: return "transfer_cast";
    case TraceKind::kCompute: return "compute";
    case TraceKind::kPostReduce: return "post_reduce";
    case TraceKind::kWaitReduce: return "wait_reduce";
    case TraceKind::kTransferReduce: return "transfer_reduce";
    case TraceKind::kAllReduce: return "all_reduce";
    case TraceKind::kFinish: return "finish";
  }
  return "unknown";
}

std::string_view to_string(DeviceOverlap overlap) {
  switch (overlap) {
    case DeviceOverlap::kAuto: return "auto";
    case DeviceOverlap::kSingleLaunch: return "single_launch";
    case DeviceOverlap::kStages: return "stages";
    case DeviceOverlap::kNone: return "none";
  }
  return "unknown";
}

class DistAttention::Impl {
 public:
  RankContext context;
  std::unique_ptr<PlanExecutor> executor;

  /// Checks and agreement of ranks over either kind of memory: collective, unless there is an `agreement`. `check` is
  /// of one of them.
  template <class Check>
  void agree(std::shared_ptr<const Plan> plan, Communicator& control, const AttnBackend& backend, MemoryKind memory,
             Agreement* agreement, uint64_t options, const Check& check) {
    const auto check_all = [&] {
      require(plan != nullptr, "DistAttention: plan must be given (got null)");
      const bool on_host = memory == MemoryKind::kHost;
      require(backend.memory() == memory, "DistAttention: backend must work on {} (got {}, which works on {} memory)",
              on_host ? "host memory, see AttnBackendOptions::host_memory" : "the memory of GPUs, as the communicator",
              backend.name(), on_host ? "device" : "host");
      check_plan(*plan, control.size());
      require(plan->movement() == nullptr || backend.caps().delta,
              "DistAttention: a plan that moves queries needs a backend that takes delta (got {}, which does not)",
              backend.name());
      context.plan = plan;
      context.communicator = &control;
      context.backend = &backend;
      context.rank = control.rank();
      context.shape = rank_shape(*plan, context.rank);
      check();
      context.fingerprint = fingerprint_of(*plan);
    };
    if (agreement != nullptr) {
      check_for_all(*agreement, check_all);
      agreement->agree(context.fingerprint, options);
    } else {
      check_for_all(control, control.size() > 1, check_all);
      agree_on_plan(control, context.fingerprint);
      if (memory == MemoryKind::kDevice) {
        control.require_agreement(options, fmt::format("DistAttention: options, backend {}", backend.name()));
      }
    }
  }
};

DistAttention::DistAttention(std::shared_ptr<const Plan> plan, Communicator& communicator, const AttnBackend& backend,
                             const DistAttentionOptions&)
    : impl_(std::make_unique<Impl>()) {
  impl_->agree(std::move(plan), communicator, backend, MemoryKind::kHost, nullptr, 0,
               [this] { impl_->executor = make_host_attention(impl_->context); });
}

DistAttention::DistAttention(std::shared_ptr<const Plan> plan, DeviceCommunicator& communicator,
                             const AttnBackend& backend, const DistAttentionOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->agree(std::move(plan), communicator.control(), backend, MemoryKind::kDevice, communicator.agreement(),
               hash_of_options(options, backend),
               [&] { device::check_attention(impl_->context, communicator, options); });
  impl_->executor = device::make_attention(impl_->context, communicator, options);
}

DistAttention::~DistAttention() = default;
DistAttention::DistAttention(DistAttention&&) noexcept = default;
DistAttention& DistAttention::operator=(DistAttention&&) noexcept = default;

const Plan& DistAttention::plan() const { return *impl_->context.plan; }
int DistAttention::rank() const { return impl_->context.rank; }
int64_t DistAttention::q_rows() const { return impl_->context.shape.seqlen_q; }
int64_t DistAttention::k_rows() const { return impl_->context.k_shard_rows(); }
int64_t DistAttention::device_bytes() const { return impl_->executor->device_bytes(); }
int64_t DistAttention::forward_workspace_bytes() const { return impl_->executor->forward_workspace_bytes(); }
int64_t DistAttention::backward_workspace_bytes() const { return impl_->executor->backward_workspace_bytes(); }

bool DistAttention::met_peers() const { return impl_->executor->met_peers(); }

void DistAttention::forward(const DistForwardArgs& args, void* stream) { impl_->executor->forward(args, stream); }
void DistAttention::backward(const DistBackwardArgs& args, void* stream) { impl_->executor->backward(args, stream); }

const std::vector<TraceEvent>& DistAttention::trace() const { return impl_->context.recorder.events(); }
MemoryUse DistAttention::memory_use() const { return impl_->context.recorder.memory(); }

}  // namespace tangram
