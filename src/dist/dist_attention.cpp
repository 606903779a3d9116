// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/dist_attention.hpp"

#include "core/require.hpp"
#include "dist/rank_context.hpp"
#include "tangram/error.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {

namespace {

class Hasher {
 public:
  void add(uint64_t value) { hash_ = (hash_ ^ value) * 0x9e3779b97f4a7c15 ^ (hash_ >> 29); }
  void add(const Dispatch& dispatch) {
    add(static_cast<uint64_t>(dispatch.chunk_size));
    for (const int rank : dispatch.rank_of_chunk) add(static_cast<uint64_t>(rank));
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

/// Of all that decides who sends what to whom.
uint64_t hash_of(const Plan& plan) {
  Hasher hasher;
  hasher.add(plan.mask.hash());
  const HeadConfig& heads = plan.config.heads;
  for (const int value : {plan.config.cp_size, heads.num_heads_q, heads.num_heads_kv, heads.head_dim, heads.head_dim_v,
                          static_cast<int>(heads.dtype), static_cast<int>(plan.config.reduce_dtype)}) {
    hasher.add(static_cast<uint64_t>(value));
  }
  hasher.add(plan.q_dispatch);
  hasher.add(plan.k_dispatch);
  for (const RankPlan& rank : plan.ranks) {
    for (const auto* stages : {&rank.forward, &rank.backward}) {
      for (const Stage& stage : *stages) {
        hasher.add(static_cast<uint64_t>(stage.exchange.rows_received()) * 2 + (stage.kept ? 1 : 0));
      }
    }
  }
  return hasher.value();
}

void check_plan(const Plan& plan, int size) {
  require(plan.cp_size() == size,
          "DistAttention: plan must be for as many ranks as the communicator has (got {} and {})", plan.cp_size(),
          size);
  for (const RankPlan& rank : plan.ranks) {
    TANGRAM_ASSERT(!rank.forward.empty() && rank.forward.size() == plan.ranks.front().forward.size());
    TANGRAM_ASSERT(!rank.backward.empty() && rank.backward.size() == plan.ranks.front().backward.size());
    for (const auto* stages : {&rank.forward, &rank.backward}) {
      int64_t remote_rows = 0;
      for (const Stage& stage : *stages) remote_rows += stage.exchange.rows_received();
      TANGRAM_ASSERT(remote_rows == rank.remote_kv_rows);
    }
  }
}

/// A stage without slices needs no call, except the first that sets the results of rows without keys.
std::vector<std::unique_ptr<PreparedMask>> prepare_stages(const RankContext& context,
                                                          const std::vector<Stage>& stages) {
  std::vector<std::unique_ptr<PreparedMask>> prepared;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const bool has_work = stage == 0 || !stages[stage].slices.empty();
    prepared.push_back(has_work ? prepare_slices(*context.backend, stages[stage].slices, context.shape) : nullptr);
  }
  return prepared;
}

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

  template <class Args, class Run>
  void pass(const Args& args, bool will_communicate, Run run) {
    check_for_all(*context.communicator, will_communicate, [&] { validate(context, args); });
    try {
      run(context, args);
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
    check_plan(*plan, communicator.size());
    context.plan = plan;
    context.communicator = &communicator;
    context.backend = &backend;
    context.rank = communicator.rank();
    const HeadConfig& heads = plan->config.heads;
    context.shape = {plan->q_dispatch.rows_per_rank(),
                     context.rank_plan().kv_rows,
                     heads.num_heads_q,
                     heads.num_heads_kv,
                     heads.head_dim,
                     heads.head_dim_v,
                     heads.dtype};
    context.forward = prepare_stages(context, context.rank_plan().forward);
    context.backward = prepare_stages(context, context.rank_plan().backward);
  });
  communicator.require_agreement(hash_of(*plan), "DistAttention: mask, config and dispatch");
}

DistAttention::~DistAttention() = default;
DistAttention::DistAttention(DistAttention&&) noexcept = default;
DistAttention& DistAttention::operator=(DistAttention&&) noexcept = default;

const Plan& DistAttention::plan() const { return *impl_->context.plan; }
int DistAttention::rank() const { return impl_->context.rank; }
int64_t DistAttention::q_rows() const { return impl_->context.shape.seqlen_q; }
int64_t DistAttention::k_rows() const { return impl_->context.k_shard_rows(); }

void DistAttention::forward(const DistForwardArgs& args) {
  const bool casts = impl_->context.rank_plan().forward.size() > 1;
  const bool reduces = args.max_logits != nullptr && impl_->context.communicator->size() > 1;
  impl_->pass(args, casts || reduces, run_forward);
}

void DistAttention::backward(const DistBackwardArgs& args) {
  const bool casts = impl_->context.rank_plan().backward.size() > 1;
  const bool reduces = args.dsink != nullptr && args.sink.layout == SinkLayout::kSh &&
                       args.dsink_reduce != DsinkReduce::kNone && impl_->context.communicator->size() > 1;
  impl_->pass(args, casts || reduces, run_backward);
}

const std::vector<TraceEvent>& DistAttention::trace() const { return impl_->context.recorder.events(); }
MemoryUse DistAttention::memory_use() const { return impl_->context.recorder.memory(); }

}  // namespace tangram
