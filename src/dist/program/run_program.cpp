// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/program/run_program.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram {

namespace {

constexpr int kFloatsInUnit = static_cast<int>(kArenaUnit) / static_cast<int>(sizeof(float));

class Runner {
 public:
  Runner(const ProgramRun& run, void* stream) : run_(run), stream_(stream) {}

  void operator()(const RowSumsOp& op) const {
    std::vector<RowSum> sums;
    for (const RowSumOp& sum : op.sums) sums.push_back({view(sum.source), view(sum.addend), view(sum.result)});
    run_.device.sum_rows(sums, stream_);
  }
  void operator()(const FloatCopiesOp& op) const {
    std::vector<FloatCopy> copies;
    for (const FloatCopyOp& copy : op.copies) {
      float* const to = floats(copy.to);
      if (to == nullptr) continue;  // a result that nobody asked for
      copies.push_back({floats(copy.from), to, copy.from.stride, copy.to.stride, copy.rows, copy.columns, copy.value});
    }
    if (!copies.empty()) run_.device.copy_floats(copies, stream_);
  }
  void operator()(const ZeroOp& op) const {
    run_.device.zero(view(op.tensor).data, op.tensor.rows * op.tensor.row_bytes(), stream_);
  }
  void operator()(const CastOp& op) const {
    const ConstTensorView arena = run_.memory.arena;
    run_.pass->cast(op.stage, {&arena, 1}, stream_);
    if (!run_.overlaps) run_.pass->wait_cast(op.stage, stream_);
  }
  void operator()(const WaitOp& op) const {
    if (run_.overlaps) run_.pass->wait_cast(op.stage, stream_);
  }
  void operator()(const AttendOp& op) const { op.backward ? backward(op) : forward(op); }

 private:
  TensorView view(const TensorRef& ref) const {
    if (ref.place == Place::kNone) return {};
    TensorView tensor;
    if (ref.place == Place::kArena || ref.place == Place::kWork) {
      char* const base = static_cast<char*>(ref.place == Place::kArena ? run_.memory.arena.data : run_.memory.work);
      tensor = {{base + ref.offset, ref.dtype, ref.first_row + ref.rows, ref.heads, ref.dim,
                 int64_t{ref.heads} * ref.dim, ref.dim}};
    } else {
      tensor = run_.memory.tensors[static_cast<size_t>(ref.place)];
      tensor.data = static_cast<char*>(tensor.data) +
                    ref.first_head * tensor.head_stride * static_cast<int64_t>(size_of(tensor.dtype));
      tensor.heads = ref.heads;
    }
    return slice_rows(tensor, {ref.first_row, ref.first_row + ref.rows});
  }
  float* floats(const FloatRef& ref) const {
    if (ref.place == Place::kNone) return nullptr;
    float* base = run_.memory.floats[static_cast<size_t>(ref.place)];
    if (ref.place == Place::kArena) base = static_cast<float*>(run_.memory.arena.data);
    if (ref.place == Place::kWork) base = static_cast<float*>(run_.memory.work);
    return base == nullptr ? nullptr : base + ref.offset;
  }

  AttnOptions options(const AttendOp& op) const {
    AttnOptions options = run_.options;
    if (op.beside_transfers && run_.overlaps)
      options.sm_margin = std::max(options.sm_margin, run_.margin_beside_transfers);
    return options;
  }
  Sink sink(const AttendOp& op) const {
    if (op.sink.place == Place::kNone) return {};
    return {floats(op.sink), run_.memory.seqlen_sink, run_.memory.sink_layout};
  }
  PreparedMask& mask(const AttendOp& op) const {
    const auto& mask = run_.masks.at(static_cast<size_t>(op.mask));
    TANGRAM_ASSERT(mask != nullptr);
    return *mask;
  }
  void forward(const AttendOp& op) const {
    AttnForwardArgs call;
    call.q = view(op.q);
    call.k = view(op.k);
    call.v = view(op.v);
    call.out = view(op.out);
    call.lse = floats(op.lse);
    call.max_logits = floats(op.max_logits);
    call.sink = sink(op);
    call.accumulate = op.accumulate;
    call.options = options(op);
    call.workspace = run_.memory.attention;
    run_.backend.forward(mask(op), call, stream_);
  }
  void backward(const AttendOp& op) const {
    AttnBackwardArgs call;
    call.q = view(op.q);
    call.k = view(op.k);
    call.v = view(op.v);
    call.out = view(op.out);
    call.lse = floats(op.lse);
    call.dout = view(op.dout);
    call.dq = view(op.dq);
    call.dk = view(op.dk);
    call.dv = view(op.dv);
    call.sink = sink(op);
    // A gradient that nobody asked for is not even computed into the memory that was set aside for it.
    const bool wants_dsink = run_.memory.floats[static_cast<size_t>(Place::kDsink)] != nullptr;
    call.dsink = wants_dsink ? floats(op.dsink) : nullptr;
    call.accumulate_dq = op.accumulate;
    call.options = options(op);
    call.workspace = run_.memory.attention;
    run_.backend.backward(mask(op), call, stream_);
  }

  const ProgramRun& run_;
  void* stream_;
};

}  // namespace

void run_program(const ProgramRun& run, void* stream) {
  const Runner runner(run, stream);
  for (const GridOp& op : run.program.ops) std::visit(runner, op);
}

DevicePassSpec pass_spec(const GridProgram& program, const char* label, int64_t arena_bytes) {
  DevicePassSpec spec;
  spec.label = label;
  spec.casts = program.casts;
  spec.landing = {{.rows = arena_bytes / kArenaUnit, .heads = 1, .dim = kFloatsInUnit, .dtype = DType::kFloat32}};
  return spec;
}

}  // namespace tangram
