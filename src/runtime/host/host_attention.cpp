// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include "core/interrupt.hpp"
#include "core/require.hpp"
#include "plan/program/emit.hpp"
#include "runtime/host/host_runner.hpp"
#include "runtime/pass_plan.hpp"
#include "runtime/plan_executor.hpp"
#include "runtime/rows.hpp"
#include "runtime/sanity.hpp"
#include "tangram/env.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {

namespace {

/// NaN that came in may come out; NaN that we made may not.
void check_for_nan(const DistForwardArgs& args) {
  const ConstTensorView lse{args.lse, DType::kFloat32, args.q.rows, args.q.heads, 1, args.q.heads, 1};
  if (!has_nan(args.out) && !has_nan(lse)) return;
  TANGRAM_ASSERT(has_nan(args.q) || has_nan(args.k) || has_nan(args.v));
}

class HostAttention final : public PlanExecutor {
 public:
  explicit HostAttention(RankContext& context);

  void forward(const DistForwardArgs& args, void*) override { run_checked(args); }
  void backward(const DistBackwardArgs& args, void*) override { run_checked(args); }

 private:
  enum class Kind : int { kForward, kBackward, kBackwardKept };

  /// Whether the group has an operation in such a pass, in which this rank can refuse.
  bool communicates(const DistForwardArgs& args) const;
  bool communicates(const DistBackwardArgs& args) const;
  void run(const DistForwardArgs& args);
  void run(const DistBackwardArgs& args);
  /// Checks the arguments, then runs the pass; the peers of a rank that cannot go on are told.
  template <class Args>
  void run_checked(const Args& args);

  int64_t remote_kv_rows(AttnPass pass) const;
  /// Written anew for each call, in microseconds. A program that stayed would lie among the buffers of a pass and keep
  /// the allocator from releasing them.
  HostProgram program(Kind kind, const CallShape& call);

  RankContext& context_;
  ProgramRunner::Masks masks_;
  ProgramCheck check_;
};

HostAttention::HostAttention(RankContext& context) : context_(context) {
  for (const ProgramMask& mask : program_masks(*context.plan, context.rank, kHostTarget)) {
    masks_.push_back(mask.needed ? make_mask_slot(*context.backend, mask.slices, mask.shape, {.passes = mask.passes})
                                 : nullptr);
  }
}

HostProgram HostAttention::program(Kind kind, const CallShape& call) {
  const Plan& plan = *context_.plan;
  const bool kept = kind == Kind::kBackwardKept;
  check_.before_call(plan, call, kHostTarget, kept);
  return HostProgram(kind == Kind::kForward ? forward_program(plan, context_.rank, call, kHostTarget)
                                            : backward_program(plan, context_.rank, call, kHostTarget, kept));
}

int64_t HostAttention::remote_kv_rows(AttnPass pass) const {
  const Plan& plan = *context_.plan;
  if (moves_kv_alone(plan)) return context_.rank_plan().remote_kv_rows;
  const MovementPlan* movement = plan.movement();
  return movement == nullptr ? 0 : movement->of(pass)[static_cast<size_t>(context_.rank)].remote_kv_rows;
}

bool HostAttention::communicates(const DistForwardArgs& args) const {
  if (context_.communicator->size() == 1) return false;
  return !moves_kv_alone(*context_.plan) || context_.rank_plan().forward.size() > 1 || args.max_logits != nullptr;
}

bool HostAttention::communicates(const DistBackwardArgs& args) const {
  if (context_.communicator->size() == 1) return false;
  return !moves_kv_alone(*context_.plan) || context_.rank_plan().backward.size() > 1 || combines_dsink(args);
}

template <class Args>
void HostAttention::run_checked(const Args& args) {
  check_for_all(*context_.communicator, communicates(args), [&] { validate(context_, args); });
  const SharedFingerprint shared(*context_.communicator, fingerprint_of(context_.fingerprint, *context_.plan, args));
  const OnInterrupt give_up([this] { context_.communicator->abort(kInterruptReason); });
  try {
    run(args);
  } catch (const InvalidArgument&) {
    throw;  // the ranks disagree and all know it, or the backend refused and RankContext::compute has told them
  } catch (const std::exception& error) {
    context_.communicator->abort(error.what());
    throw;
  }
}

void HostAttention::run(const DistForwardArgs& args) {
  context_.recorder.begin(AttnPass::kForward);
  context_.recorder.set_remote_rows(remote_kv_rows(AttnPass::kForward));
  if (args.kept != nullptr) *args.kept = {};
  CallShape call = CallShape::with_results(context_.plan->config.heads.dtype, args.out.dtype);
  call.seqlen_sink = args.sink.seqlen_sink;
  call.sink_layout = args.sink.layout;
  const bool keeps = args.kept != nullptr && can_keep(*context_.plan);
  call.keeps = keeps;
  const bool nan_came_in = run_on_host(context_, program(Kind::kForward, call), arguments_of(args), masks_, nullptr,
                                       keeps ? &args.kept->tensors : nullptr);
  if (keeps) args.kept->valid = true;
  reduce_max_logits(context_, args);
  if (Env::get().sanity_check && !nan_came_in) check_for_nan(args);
}

void HostAttention::run(const DistBackwardArgs& args) {
  context_.recorder.begin(AttnPass::kBackward);
  context_.recorder.set_remote_rows(remote_kv_rows(AttnPass::kBackward));
  const CallShape call{args.out.dtype, args.dout.dtype,       args.dq.dtype,    args.dk.dtype,
                       args.dv.dtype,  args.sink.seqlen_sink, args.sink.layout, args.dsink != nullptr};
  const bool has_kept = args.kept != nullptr && args.kept->valid && can_keep(*context_.plan);
  run_on_host(context_, program(has_kept ? Kind::kBackwardKept : Kind::kBackward, call), arguments_of(args), masks_,
              has_kept ? &args.kept->tensors : nullptr, nullptr);
  reduce_dsink(context_, args);
}

}  // namespace

std::unique_ptr<PlanExecutor> make_host_attention(RankContext& context) {
  return std::make_unique<HostAttention>(context);
}

}  // namespace tangram
