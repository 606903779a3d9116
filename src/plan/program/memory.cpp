// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/memory.hpp"

#include <algorithm>
#include <variant>

#include "core/require.hpp"
#include "plan/program/key_rows.hpp"

namespace tangram {

namespace {

/// Calls `visit(region)` for the regions that an operation reads or writes, some of them more than once.
template <class Visit>
struct RegionsOf {
  const Program& program;
  const Visit& visit;

  void add(const TensorRef& ref) const {
    if (ref.region >= 0) visit(ref.region);
  }
  void add(const FloatRef& ref) const {
    if (ref.region >= 0) visit(ref.region);
  }
  void add_cast(int number) const {
    for (const GroupCastTensor& item : program.casts[static_cast<size_t>(number)].items) {
      add(item.source);
      add(item.target);
    }
  }
  void operator()(const RowSumsOp& op) const {
    for (const RowSumOp& sum : op.sums) {
      for (const TensorRef* ref : {&sum.source, &sum.addend, &sum.result}) add(*ref);
    }
  }
  void operator()(const FloatCopiesOp& op) const {
    for (const FloatCopyOp& copy : op.copies) {
      add(copy.from);
      add(copy.to);
    }
  }
  void operator()(const ZeroOp& op) const { add(op.tensor); }
  void operator()(const GroupCastOp& op) const { add_cast(op.cast); }
  void operator()(const WaitOp& op) const { add_cast(op.cast); }
  void operator()(const AttendOp& op) const {
    for (const TensorRef* ref : {&op.q, &op.k, &op.v, &op.out, &op.dout, &op.dq, &op.dk, &op.dv}) add(*ref);
    for (const FloatRef* ref : {&op.lse, &op.sink, &op.max_logits, &op.dsink, &op.delta}) add(*ref);
  }
  void operator()(const DeltaOp& op) const {
    for (const TensorRef* ref : {&op.out, &op.dout, &op.delta}) add(*ref);
  }
  void operator()(const MergeOp& op) const {
    for (const TensorRef* ref : {&op.out, &op.lse, &op.other_out, &op.other_lse}) add(*ref);
  }
  void operator()(const SinkGradOp& op) const {
    for (const TensorRef* ref : {&op.lse, &op.delta}) add(*ref);
  }
  void operator()(const LargestOp& op) const {
    for (const FloatRef* ref : {&op.from, &op.to}) add(*ref);
  }
  // Operations of programs for streams: regions live as long as their pass.
  void operator()(const OpenOp&) const {}
  void operator()(const FinishOp&) const {}
  void operator()(const WaitSendOp&) const {}
  void operator()(const ReleaseCreditOp&) const {}
};

int64_t bytes_of(const TensorRef& tensor) { return tensor.rows * tensor.row_bytes(); }

int64_t argument_bytes(const Plan& plan, AttnPass pass, const CallShape& call) {
  const PassArguments given(plan, call);
  int64_t bytes = 0;
  for (const TensorRef* tensor : {&given.q, &given.keys.k, &given.keys.v, &given.out, &given.lse}) {
    bytes += bytes_of(*tensor);
  }
  if (pass == AttnPass::kForward) return bytes;
  for (const TensorRef* tensor : {&given.dout, &given.dq, &given.key_grads.k, &given.key_grads.v}) {
    bytes += bytes_of(*tensor);
  }
  return bytes;
}

}  // namespace

RegionLives region_lives(const Program& program) {
  constexpr size_t kUnused = SIZE_MAX;
  std::vector<size_t> first(program.regions.size(), kUnused), last(program.regions.size());
  for (size_t op = 0; op < program.ops.size(); ++op) {
    const auto visit = [&](int region) {
      size_t& begin = first[static_cast<size_t>(region)];
      if (begin == kUnused) begin = op;
      last[static_cast<size_t>(region)] = op;
    };
    std::visit(RegionsOf<decltype(visit)>{program, visit}, program.ops[op]);
  }
  RegionLives lives{std::vector<std::vector<int>>(program.ops.size()),
                    std::vector<std::vector<int>>(program.ops.size())};
  for (size_t region = 0; region < first.size(); ++region) {
    if (first[region] == kUnused) continue;
    lives.born[first[region]].push_back(static_cast<int>(region));
    lives.dying[last[region]].push_back(static_cast<int>(region));
  }
  return lives;
}

int64_t program_memory(const Program& program, const RegionLives& lives, KeptRegions kept) {
  const auto is_kept = [&](int region) { return kept != KeptRegions::kNone && region < program.num_kept; };
  const auto size = [&](int region) { return program.regions[static_cast<size_t>(region)].bytes(); };
  int64_t bytes = 0, not_born = 0;
  for (int region = 0; is_kept(region); ++region) not_born += size(region);
  if (kept == KeptRegions::kGiven) bytes = not_born;
  int64_t most = bytes;
  for (size_t op = 0; op < program.ops.size(); ++op) {
    for (const int region : lives.born[op]) {
      if (is_kept(region)) not_born -= size(region);
      if (!is_kept(region) || kept == KeptRegions::kLeft) bytes += size(region);
    }
    most = std::max(most, bytes);
    for (const int region : lives.dying[op]) bytes -= is_kept(region) ? 0 : size(region);
  }
  // What no operation names is made all the same, to be left.
  return kept == KeptRegions::kLeft ? std::max(most, bytes + not_born) : most;
}

PassMemory pass_memory(const Plan& plan, int rank, AttnPass pass, CallShape call, bool keeps) {
  TANGRAM_ASSERT(!keeps || can_keep(plan));
  const bool forward = pass == AttnPass::kForward;
  call.keeps = forward && keeps;
  const Program program =
      forward ? forward_program(plan, rank, call, kHostTarget) : backward_program(plan, rank, call, kHostTarget, keeps);
  const KeptRegions kept = !keeps ? KeptRegions::kNone : forward ? KeptRegions::kLeft : KeptRegions::kGiven;
  return {argument_bytes(plan, pass, call), program_memory(program, region_lives(program), kept)};
}

int64_t Plan::peak_bytes(int rank) const {
  require(0 <= rank && rank < cp_size(), "Plan::peak_bytes: rank must lie in [0, {}) (got {})", cp_size(), rank);
  const CallShape call = CallShape::with_results(config.heads.dtype, config.heads.dtype);
  const bool keeps = can_keep(*this);
  return std::max(pass_memory(*this, rank, AttnPass::kForward, call, keeps).bytes(),
                  pass_memory(*this, rank, AttnPass::kBackward, call, keeps).bytes());
}

}  // namespace tangram
