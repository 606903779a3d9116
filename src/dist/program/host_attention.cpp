// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/program/host_attention.hpp"

#include <utility>

#include "plan/program/verify.hpp"
#include "tangram/env.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram {

namespace {

/// The operands of the next chunk of heads travel while one computes; more would only take memory.
constexpr ProgramTarget kHost{.sends_from_anywhere = true, .chunks_ahead = 1, .float_unit = 1};

/// Under TANGRAM_SANITY_CHECK the programs of small groups and sequences are played on all ranks before the first runs.
void verify_if_small(const Plan& plan, const CallShape& call, bool kept) {
  constexpr int64_t kMostCells = 1 << 20;
  const bool is_small = plan.cp_size() <= 4 && plan.mask.seqlen_q() * plan.config.heads.num_heads_q <= kMostCells;
  if (Env::get().sanity_check && plan.cp_size() > 1 && is_small) {
    verify(plan, call, step_programs(plan, call, kHost, kept));
  }
}

}  // namespace

size_t kept_tensors_of_chunk(const Sink& sink) { return !sink.empty() && sink.layout == SinkLayout::kSsh ? 6 : 5; }

HostAttention::HostAttention(RankContext& context) : context_(context) {
  for (const ProgramMask& mask : program_masks(*context.plan, context.rank)) {
    masks_.push_back(mask.needed ? prepare_slices(*context.backend, mask.slices, mask.shape) : nullptr);
  }
}

const HostProgram& HostAttention::program(Kind kind, const CallShape& call) {
  const auto key = std::pair(kind, call);
  const auto found = programs_.find(key);
  if (found != programs_.end()) return found->second;
  const Plan& plan = *context_.plan;
  verify_if_small(plan, call, kind == Kind::kBackwardKept);
  HostProgram written(kind == Kind::kForward
                          ? forward_program(plan, context_.rank, call, kHost)
                          : backward_program(plan, context_.rank, call, kHost, kind == Kind::kBackwardKept));
  return programs_.emplace(key, std::move(written)).first->second;
}

void HostAttention::forward(const DistForwardArgs& args) {
  context_.recorder.begin(AttnPass::kForward);
  if (args.kept != nullptr) *args.kept = {};
  CallShape call = CallShape::with_results(context_.plan->config.heads.dtype, args.out.dtype);
  call.seqlen_sink = args.sink.seqlen_sink;
  call.sink_layout = args.sink.layout;
  const bool keeps = args.kept != nullptr && context_.plan->grid.head_ranks > 1;
  run_on_host(context_, program(Kind::kForward, call), arguments_of(args), masks_, nullptr,
              keeps ? &args.kept->heads : nullptr);
  if (keeps) args.kept->valid = true;
  reduce_max_logits(context_, args);
}

void HostAttention::backward(const DistBackwardArgs& args) {
  context_.recorder.begin(AttnPass::kBackward);
  const CallShape call{args.out.dtype, args.dout.dtype,       args.dq.dtype,    args.dk.dtype,
                       args.dv.dtype,  args.sink.seqlen_sink, args.sink.layout, args.dsink != nullptr};
  const bool has_kept = args.kept != nullptr && args.kept->valid;
  run_on_host(context_, program(has_kept ? Kind::kBackwardKept : Kind::kBackward, call), arguments_of(args), masks_,
              has_kept ? &args.kept->heads : nullptr, nullptr);
  reduce_dsink(context_, args);
}

}  // namespace tangram
