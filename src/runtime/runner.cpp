// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/runner.hpp"

#include "core/require.hpp"
#include "tangram/dist_attention.hpp"

namespace tangram {

namespace {

TensorView writable(const ConstTensorView& view) {  // programs do not write what a pass only reads
  return {
      {const_cast<void*>(view.data), view.dtype, view.rows, view.heads, view.dim, view.row_stride, view.head_stride}};
}

/// The arguments that both passes have.
template <class Args>
ProgramArguments common_arguments(const Args& args) {
  ProgramArguments arguments;
  arguments.tensor(Memory::kQ) = writable(args.q);
  arguments.tensor(Memory::kK) = writable(args.k);
  arguments.tensor(Memory::kV) = writable(args.v);
  arguments.tensor(Memory::kOut) = writable(args.out);
  arguments.values(Memory::kLse) = const_cast<float*>(args.lse);
  arguments.tensor(Memory::kLse) = {
      {const_cast<float*>(args.lse), DType::kFloat32, args.q.rows, args.q.heads, 1, args.q.heads, 1}};
  arguments.values(Memory::kSink) = const_cast<float*>(args.sink.data);
  arguments.sink_layout = args.sink.layout;
  arguments.seqlen_sink = args.sink.seqlen_sink;
  arguments.options = args.options;
  return arguments;
}

}  // namespace

ProgramArguments arguments_of(const DistForwardArgs& args) {
  ProgramArguments arguments = common_arguments(args);
  arguments.values(Memory::kMaxLogits) = args.max_logits;
  return arguments;
}

ProgramArguments arguments_of(const DistBackwardArgs& args) {
  ProgramArguments arguments = common_arguments(args);
  arguments.tensor(Memory::kDout) = writable(args.dout);
  arguments.tensor(Memory::kDq) = args.dq;
  arguments.tensor(Memory::kDk) = args.dk;
  arguments.tensor(Memory::kDv) = args.dv;
  arguments.values(Memory::kDsink) = args.dsink;
  return arguments;
}

struct ProgramRunner::Visitor {
  ProgramRunner& runner;

  void operator()(const RowSumsOp& op) const {
    std::vector<RowSum> sums;
    for (const RowSumOp& sum : op.sums) {
      sums.push_back({runner.view(sum.source), runner.view(sum.addend), runner.view(sum.result),
                      runner.row_lists(sum.addend_rows)});
    }
    runner.sum_rows(sums, op.step);
  }
  void operator()(const FloatCopiesOp& op) const {
    std::vector<FloatCopy> copies;
    for (const FloatCopyOp& copy : op.copies) {
      float* const to = runner.floats(copy.to);
      if (to == nullptr) continue;  // a result that was not requested
      copies.push_back(
          {runner.floats(copy.from), to, copy.from.stride, copy.to.stride, copy.rows, copy.columns, copy.value});
    }
    if (!copies.empty()) runner.copy_floats(copies, op.step);
  }
  void operator()(const ZeroOp& op) const { runner.zero(runner.view(op.tensor)); }
  void operator()(const OpenOp& op) const { runner.open(op); }
  void operator()(const FinishOp& op) const { runner.finish(op); }
  void operator()(const GroupCastOp& op) const { runner.cast(op.cast); }
  void operator()(const WaitOp& op) const { runner.wait(op.cast); }
  void operator()(const WaitSendOp& op) const { runner.wait_send(op.cast); }
  void operator()(const ReleaseCreditOp& op) const { runner.release_credit(op.cast); }
  void operator()(const AttendOp& op) const {
    const auto& mask = runner.masks_.at(static_cast<size_t>(op.mask));
    TANGRAM_ASSERT(mask != nullptr);
    if (op.backward) {
      AttnBackwardArgs call = runner.backward_call(op);
      runner.attend(op, *mask, call);
    } else {
      AttnForwardArgs call = runner.forward_call(op);
      runner.attend(op, *mask, call);
    }
  }
  template <class OwnerOp>
  void operator()(const OwnerOp& op) const {
    runner.at_owner(op);
  }
};

void ProgramRunner::open(const OpenOp&) { TANGRAM_ASSERT(false); }
void ProgramRunner::finish(const FinishOp&) { TANGRAM_ASSERT(false); }
void ProgramRunner::wait_send(int) { TANGRAM_ASSERT(false); }
void ProgramRunner::release_credit(int) { TANGRAM_ASSERT(false); }

RowListsView ProgramRunner::row_lists(int) const {
  TANGRAM_ASSERT(false);
  return {};
}

RowListsView ProgramRunner::row_lists(const RowListsRef& ref) const {
  if (ref.lists < 0) return {};
  RowListsView lists = row_lists(ref.lists);
  lists.begins += ref.first;
  return lists;
}

void ProgramRunner::run() {
  for (size_t i = 0; i < program_.ops.size(); ++i) {
    before(i);
    std::visit(Visitor{*this}, program_.ops[i]);
    after(i);
  }
}

TensorView ProgramRunner::view(const TensorRef& ref) const {
  if (ref.memory == Memory::kNone) return {};
  TensorView tensor;
  if (ref.region >= 0) {
    const int heads = program_.regions[static_cast<size_t>(ref.region)].heads;
    tensor = {
        {data(ref.region), ref.dtype, ref.first_row + ref.rows, heads, ref.dim, int64_t{heads} * ref.dim, ref.dim}};
  } else {
    tensor = arguments_.tensors[static_cast<size_t>(ref.memory)];
  }
  tensor.data = static_cast<char*>(tensor.data) +
                ref.first_head * tensor.head_stride * static_cast<int64_t>(size_of(tensor.dtype));
  tensor.heads = ref.heads;
  return slice_rows(tensor, {ref.first_row, ref.first_row + ref.rows});
}

float* ProgramRunner::floats(const FloatRef& ref) const {
  if (ref.memory == Memory::kNone) return nullptr;
  float* const base =
      ref.region >= 0 ? static_cast<float*>(data(ref.region)) : arguments_.floats[static_cast<size_t>(ref.memory)];
  return base == nullptr ? nullptr : base + ref.offset;
}

Sink ProgramRunner::sink(const FloatRef& ref) const {
  if (ref.memory == Memory::kNone) return {};
  return {floats(ref), arguments_.seqlen_sink, arguments_.sink_layout};
}

template <class Call>
Call ProgramRunner::call_of(const AttendOp& op) const {
  Call call;
  call.q = view(op.q);
  call.k = view(op.k);
  call.v = view(op.v);
  call.out = view(op.out);
  call.lse = floats(op.lse);
  call.sink = sink(op.sink);
  call.options = arguments_.options;
  return call;
}

AttnForwardArgs ProgramRunner::forward_call(const AttendOp& op) const {
  auto call = call_of<AttnForwardArgs>(op);
  const bool wants_max_logits = arguments_.floats[static_cast<size_t>(Memory::kMaxLogits)] != nullptr;
  call.max_logits = wants_max_logits ? floats(op.max_logits) : nullptr;
  call.accumulate = op.accumulate;
  return call;
}

AttnBackwardArgs ProgramRunner::backward_call(const AttendOp& op) const {
  auto call = call_of<AttnBackwardArgs>(op);
  call.dout = view(op.dout);
  call.dq = view(op.dq);
  call.dk = view(op.dk);
  call.dv = view(op.dv);
  // A gradient that was not requested is not even computed into the memory reserved for it.
  const bool wants_dsink = arguments_.floats[static_cast<size_t>(Memory::kDsink)] != nullptr;
  call.dsink = wants_dsink ? floats(op.dsink) : nullptr;
  call.delta = floats(op.delta);
  call.accumulate_dq = op.accumulate;
  call.accumulate_dkv = op.accumulate_kv;
  return call;
}

}  // namespace tangram
