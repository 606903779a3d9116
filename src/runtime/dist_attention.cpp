// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/dist_attention.hpp"

#include "core/require.hpp"
#include "runtime/host/host_attention.hpp"
#include "runtime/pass_plan.hpp"
#include "runtime/rank_context.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

/// Runs `check`; when it refuses, so does this rank's part in the group's next operation, if there is to be one.
template <class Check>
void check_for_all(Communicator& communicator, bool will_communicate, Check check) {
  try {
    check();
  } catch (const Error& error) {
    if (will_communicate) communicator.refuse(error.what());
    throw;
  }
}

}  // namespace

std::string_view to_string(TraceKind kind) {
  switch (kind) {
    case TraceKind::kCopyLocal: return "copy_local";
    case TraceKind::kPostCast: return "post_cast";
    case TraceKind::kWaitCast: return "wait_cast";
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

class DistAttention::Impl {
 public:
  RankContext context;
  CallFacts facts;  // of the plan
  std::unique_ptr<HostAttention> attention;

  /// Whether the group has an operation in such a pass, in which this rank can refuse.
  bool communicates(const DistForwardArgs& args) const {
    if (context.communicator->size() == 1) return false;
    if (!context.plan->grid.empty() || !context.plan->movement.empty()) return true;
    return context.rank_plan().forward.size() > 1 || args.max_logits != nullptr;
  }
  bool communicates(const DistBackwardArgs& args) const {
    if (context.communicator->size() == 1) return false;
    if (!context.plan->grid.empty() || !context.plan->movement.empty()) return true;
    const bool reduces =
        args.dsink != nullptr && args.sink.layout == SinkLayout::kSh && args.dsink_reduce != DsinkReduce::kNone;
    return context.rank_plan().backward.size() > 1 || reduces;
  }

  template <class Args, class Run>
  void pass(const Args& args, bool will_communicate, Run run) {
    check_for_all(*context.communicator, will_communicate, [&] { validate(context, args); });
    const SharedFacts shared(*context.communicator, facts_of(facts, *context.plan, args));
    try {
      run();
    } catch (const InvalidArgument&) {
      throw;  // the ranks disagree and all know it, or the backend refused and RankContext::compute has told them
    } catch (const std::exception& error) {
      context.communicator->abort(error.what());
      throw;
    }
  }
};

DistAttention::DistAttention(std::shared_ptr<const Plan> plan, Communicator& communicator, const AttnBackend& backend)
    : impl_(std::make_unique<Impl>()) {
  RankContext& context = impl_->context;
  check_for_all(communicator, communicator.size() > 1, [&] {
    require(plan != nullptr, "DistAttention: plan must be given (got null)");
    require(backend.memory() == MemoryKind::kHost,
            "DistAttention: backend must work on host memory, see AttnBackendOptions::host_memory (got {}, which works "
            "on device memory)",
            backend.name());
    context.plan = plan;
    context.communicator = &communicator;
    context.backend = &backend;
    context.rank = communicator.rank();
    if (plan->grid.empty() && plan->movement.empty()) {
      check_plan("DistAttention", *plan, communicator.size());
      context.shape = rank_shape(*plan, context.rank);
    } else {
      require(plan->cp_size() == communicator.size(),
              "DistAttention: plan must be for as many ranks as the communicator has (got {} and {})", plan->cp_size(),
              communicator.size());
      require(plan->movement.empty() || backend.takes_delta(),
              "DistAttention: a plan that moves queries needs a backend that takes delta (got {}, which does not)",
              backend.name());
      context.shape.seqlen_q = plan->q_dispatch.rows_per_rank();
    }
    impl_->attention = std::make_unique<HostAttention>(context);
  });
  impl_->facts = facts_of(*plan);
  agree_on_plan(communicator, impl_->facts, "DistAttention");
}

DistAttention::~DistAttention() = default;
DistAttention::DistAttention(DistAttention&&) noexcept = default;
DistAttention& DistAttention::operator=(DistAttention&&) noexcept = default;

const Plan& DistAttention::plan() const { return *impl_->context.plan; }
int DistAttention::rank() const { return impl_->context.rank; }
int64_t DistAttention::q_rows() const { return impl_->context.shape.seqlen_q; }
int64_t DistAttention::k_rows() const { return impl_->context.k_shard_rows(); }

void DistAttention::forward(const DistForwardArgs& args) {
  impl_->pass(args, impl_->communicates(args), [this, &args] { impl_->attention->forward(args); });
}

void DistAttention::backward(const DistBackwardArgs& args) {
  impl_->pass(args, impl_->communicates(args), [this, &args] { impl_->attention->backward(args); });
}

const std::vector<TraceEvent>& DistAttention::trace() const { return impl_->context.recorder.events(); }
MemoryUse DistAttention::memory_use() const { return impl_->context.recorder.memory(); }

}  // namespace tangram
