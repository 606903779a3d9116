// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Calls of ProgramAttention: what they must be, which program is theirs, and how it runs with the pass that moves rows.

#include <algorithm>

#include "core/require.hpp"
#include "runtime/device/program_attention.hpp"
#include "runtime/pass_plan.hpp"
#include "tangram/env.hpp"

namespace tangram {

const DeviceProgram& ProgramAttention::checked_program(Kind kind, const CallShape& call) {
  const bool kept = kind == Kind::kForward ? moves_keys_alone() && keeps() : kind == Kind::kBackwardKept;
  check_.before_call(*base_.plan, call, options_.target, kept);
  return program(kind, call);
}

template <class Args>
void ProgramAttention::compare_calls(const Args& args) const {
  if (!Env::get().sanity_check || communicator_.size() == 1) return;
  agree_on_call(communicator_.control(), fingerprint_of(base_.fingerprint, *base_.plan, args));
}
void ProgramAttention::compare(const DistForwardArgs& args) const { compare_calls(args); }
void ProgramAttention::compare(const DistBackwardArgs& args) const { compare_calls(args); }

CallShape ProgramAttention::shape_of(DType result_dtype, const Sink& sink) const {
  CallShape call = CallShape::with_results(base_.plan->config.heads.dtype, result_dtype);
  if (by_heads()) {
    call.out = options_.result_dtype;
    call.dq = call.dk = call.dv = grad_dtype();
  }
  call.seqlen_sink = sink.seqlen_sink;
  call.sink_layout = sink.layout;
  return call;
}

CallShape ProgramAttention::shape_of(const DistBackwardArgs& args) const {
  CallShape call = shape_of(args.dq.dtype, args.sink);
  if (!by_heads()) call.dk = args.dk.dtype, call.dv = args.dv.dtype;
  return call;
}

void ProgramAttention::check_result(const char* function, const char* name, DType dtype, DType prepared) const {
  require(!by_heads() || dtype == prepared,
          "{}: {} must be {}, in which it moves with its heads (got {}; see DistAttentionOptions::result_dtype and "
          "grad_dtype)",
          function, name, to_string(prepared), to_string(dtype));
}

void ProgramAttention::check_sink(const char* function, const Sink& sink) const {
  if (!by_heads()) return;
  const int64_t row_sinks = sink.layout == SinkLayout::kSsh ? sink.seqlen_sink : 0;
  require(row_sinks == options_.row_sinks,
          "{}: sinks of single rows must be as many as prepared for, since they move with heads (got {} and "
          "DistAttentionOptions::row_sinks={})",
          function, row_sinks, options_.row_sinks);
  if (row_sinks > 0) return;
  const int64_t count = sink.seqlen_sink * base_.plan->config.heads.num_heads_q;
  require(count <= DeviceCommunicator::kMaxReduceValues, "{}: a sink must have at most {} values (got {})", function,
          DeviceCommunicator::kMaxReduceValues, count);
}

void ProgramAttention::check_keys(const char* function, const ConstTensorView& k, const ConstTensorView& v,
                                  const KeptKv* kept) const {
  if (!moves_keys_alone()) return;
  require((kept != nullptr) == keeps(),
          "{}: kept must be given where the plan keeps remote K/V, and only there (got {})", function,
          kept != nullptr ? "one" : "null");
  for (const auto& [name, view] : {std::pair("k", k), std::pair("v", v)}) {
    const bool fits = view.head_stride == view.dim && view.row_stride >= int64_t{view.heads} * view.dim;
    if (!fits) {
      require(fits, "{}: rows of {} must be contiguous (got row_stride={}, head_stride={} for {})", function, name,
              view.row_stride, view.head_stride, shape_text(view));
    }
  }
}

void ProgramAttention::check_kept_slot(const char* function, const KeptKv& kept) const {
  require(kept.valid && std::ranges::find(kept_slots_, kept.device_slot) != kept_slots_.end(),
          "{}: kept must be what a forward pass of this object left, used once (got slot={})", function,
          kept.device_slot);
}

void ProgramAttention::check(const DistForwardArgs& args) const {
  const char* function = "DistAttention::forward";
  DistForwardArgs plain = args;
  plain.kept = nullptr;
  check_keys(function, args.k, args.v, args.kept);
  validate(base_, plain);
  require(args.kept == nullptr || options_.with_backward, "{}: kept needs a backward pass (got with_backward=false)",
          function);
  check_result(function, "out", args.out.dtype, options_.result_dtype);
  check_sink(function, args.sink);
}

void ProgramAttention::check(const DistBackwardArgs& args) const {
  const char* function = "DistAttention::backward";
  require(options_.with_backward, "{}: must be prepared (got with_backward=false)", function);
  DistBackwardArgs plain = args;
  plain.kept = nullptr;
  check_keys(function, args.k, args.v, args.kept);
  if (args.kept != nullptr && (args.kept->valid || moves_keys_alone())) check_kept_slot(function, *args.kept);
  validate(base_, plain);
  check_result(function, "out", args.out.dtype, options_.result_dtype);
  check_result(function, "dq", args.dq.dtype, grad_dtype());
  check_result(function, "dk", args.dk.dtype, grad_dtype());
  check_result(function, "dv", args.dv.dtype, grad_dtype());
  check_sink(function, args.sink);
  require(!(by_heads() || moves_queries()) || args.dout.dtype == base_.plan->config.heads.dtype,
          "{}: dout must be {}, in which it moves with its {} (got {})", function,
          to_string(base_.plan->config.heads.dtype), by_heads() ? "heads" : "queries", to_string(args.dout.dtype));
  for (const auto& [name, view] : {std::pair("dk", args.dk), std::pair("dv", args.dv)}) {
    const bool fits = !moves_keys_alone() || view.contiguous();
    if (!fits) {
      require(fits, "{}: {} must be contiguous (got row_stride={}, head_stride={} for {})", function, name,
              view.row_stride, view.head_stride, shape_text(view));
    }
  }
  const int64_t sinks = args.dsink == nullptr ? 0 : args.sink.seqlen_sink * args.q.heads;
  require(args.sink.layout == SinkLayout::kSsh || sinks <= DeviceCommunicator::kMaxReduceValues,
          "{}: dsink must have at most {} values (got {})", function, DeviceCommunicator::kMaxReduceValues, sinks);
}

DevicePass* ProgramAttention::pass_of(Kind kind) const {
  const auto found = passes_.find(kind);
  return found == passes_.end() ? nullptr : found->second.get();
}

void ProgramAttention::open(Kind kind, const Program& program, const ProgramArguments& arguments, const KeptKv* kept,
                            void* stream) {
  DevicePass* const pass = pass_of(kind);
  if (pass == nullptr) return;
  if (kind == Kind::kBackwardKept) {
    slot_ = pass->begin_kept({kept->device_slot}, stream);
    std::erase(kept_slots_, kept->device_slot);
  } else {
    slot_ = pass->begin(opening_sources(program, arguments), stream);
  }
}

void ProgramAttention::run(Kind kind, const DeviceProgram& program, const ProgramArguments& arguments,
                           const AttnWorkspace& workspace, bool keeps, void* stream) {
  const int64_t attention_bytes =
      this->attention_bytes(kind == Kind::kForward ? AttnPass::kForward : AttnPass::kBackward);
  const int64_t needed = work_bytes_ + attention_bytes + own_arena_bytes_;
  require(workspace.bytes >= needed, "ProgramAttention: needs a workspace of {} bytes (got {})", needed,
          workspace.bytes);
  DevicePass* const pass = pass_of(kind);
  char* const memory = static_cast<char*>(workspace.data);
  AttnWorkspace attention;
  if (attention_bytes > 0) attention = {memory + work_bytes_, attention_bytes};
  std::vector<TensorView> recv_buffers;
  const int num_tensors = std::max<int>(1, static_cast<int>(program.layout.recv_buffers.size()));
  for (int i = 0; pass != nullptr && i < num_tensors; ++i) recv_buffers.push_back(pass->recv_buffers(i, slot_));
  const int margin = options_.margin_beside_transfers >= 0 ? options_.margin_beside_transfers
                     : pass != nullptr                     ? pass->transfer_sms()
                                                           : 0;
  const bool overlaps = kind == Kind::kForward ? options_.overlaps_forward : options_.overlaps_backward;
  run_on_stream(
      {program, row_lists_.at(kind), masks_, arguments, std::move(recv_buffers), memory + work_bytes_ + attention_bytes,
       memory, attention, pass, *base_.backend, device_, margin, overlaps, options_.starts_transfers_first,
       places_.get(), Env::get().sanity_check, kind == Kind::kBackwardKept, keeps},
      stream);
}

void ProgramAttention::forward(const DistForwardArgs& args, void* stream) {
  DevicePass* const pass = pass_of(Kind::kForward);
  if (args.kept != nullptr && args.kept->valid && std::erase(kept_slots_, args.kept->device_slot) > 0) {
    pass->drop_kept({args.kept->device_slot});
  }
  if (args.kept != nullptr) *args.kept = {};
  const DeviceProgram& written = checked_program(Kind::kForward, shape_of(args.out.dtype, args.sink));
  const ProgramArguments arguments = arguments_of(args);
  open(Kind::kForward, written.program, arguments, nullptr, stream);
  const bool is_kept = pass != nullptr && args.kept != nullptr && keeps();
  run(Kind::kForward, written, arguments, args.workspace, is_kept, stream);
  if (is_kept) {
    args.kept->device_slot = pass->end_kept(stream).slot;
    args.kept->valid = true;
    kept_slots_.push_back(args.kept->device_slot);
  } else if (pass != nullptr) {
    pass->end(stream);
  }
  if (args.max_logits != nullptr && communicator_.size() > 1) {
    communicator_.all_reduce(args.max_logits, args.q.heads, ReduceOp::kMax, stream);
  }
}

void ProgramAttention::backward(const DistBackwardArgs& args, void* stream) {
  const Kind kind = args.kept != nullptr && args.kept->valid ? Kind::kBackwardKept : Kind::kBackward;
  const DeviceProgram& written = checked_program(kind, shape_of(args));
  const ProgramArguments arguments = arguments_of(args);
  open(kind, written.program, arguments, args.kept, stream);
  run(kind, written, arguments, args.workspace, false, stream);
  if (DevicePass* const pass = pass_of(kind); pass != nullptr && !written.program.closes()) pass->end(stream);
  reduce_dsink(args, stream);
}

void ProgramAttention::reduce_dsink(const DistBackwardArgs& args, void* stream) {
  const int size = communicator_.size();
  if (!combines_dsink(args) || size == 1) return;
  const int count = static_cast<int>(args.sink.seqlen_sink) * args.q.heads;
  communicator_.all_reduce(args.dsink, count, ReduceOp::kSum, stream);
  if (args.dsink_reduce == DsinkReduce::kAvg) device_.scale(args.dsink, count, 1.0f / static_cast<float>(size), stream);
}

}  // namespace tangram
