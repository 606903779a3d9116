// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Programs that a fault is put into on purpose, for the verifier to find.
#pragma once

#include <cstddef>
#include <optional>
#include <variant>
#include <vector>

#include "plan/program/emit.hpp"
#include "plan/program/program_cases.hpp"
#include "plan/program/verify.hpp"

namespace tangram::testing {

/// What can be broken in an operation.
inline std::vector<TensorRef*> tensors_of(Op& op) {
  std::vector<TensorRef*> refs;
  if (auto* sums = std::get_if<RowSumsOp>(&op)) {
    for (RowSumOp& sum : sums->sums) refs.insert(refs.end(), {&sum.source, &sum.addend, &sum.result});
  } else if (auto* opening = std::get_if<OpenOp>(&op)) {
    for (RowSumOp& own : opening->own) refs.insert(refs.end(), {&own.source, &own.result});
  } else if (auto* finish = std::get_if<FinishOp>(&op)) {
    refs = {&finish->own_k, &finish->own_v, &finish->dk, &finish->dv};
  } else if (auto* attend = std::get_if<AttendOp>(&op)) {
    refs = {&attend->q, &attend->k, &attend->v, &attend->out, &attend->dout, &attend->dq, &attend->dk, &attend->dv};
  } else if (auto* delta = std::get_if<DeltaOp>(&op)) {
    refs = {&delta->out, &delta->dout, &delta->delta};
  } else if (auto* merge = std::get_if<MergeOp>(&op)) {
    refs = {&merge->out, &merge->lse, &merge->other_out, &merge->other_lse};
  } else if (auto* dsink = std::get_if<SinkGradOp>(&op)) {
    refs = {&dsink->lse, &dsink->delta};
  }
  std::erase_if(refs, [](const TensorRef* ref) { return ref->memory == Memory::kNone || ref->rows == 0; });
  return refs;
}

struct Mutant {
  StepPrograms programs;
  Random& random;
  const Case& of;

  std::vector<Program>& pass() { return backward ? programs.backward : programs.forward; }
  Program& program() { return pass()[rank]; }
  template <class Kind>
  std::vector<size_t> ops_of() {
    std::vector<size_t> result;
    for (size_t i = 0; i < program().ops.size(); ++i) {
      if (std::holds_alternative<Kind>(program().ops[i])) result.push_back(i);
    }
    return result;
  }
  /// The number of an operation of a kind, or of none.
  template <class Kind>
  std::optional<size_t> any_op() {
    const std::vector<size_t> ops = ops_of<Kind>();
    if (ops.empty()) return std::nullopt;
    return random.one_of(ops);
  }
  /// One that names tensors.
  std::optional<size_t> any_op_with_tensors() {
    if (random.draw(0, 2) == 0) return any_op<AttendOp>();  // of which there are few
    std::vector<size_t> result;
    for (size_t i = 0; i < program().ops.size(); ++i) {
      if (!tensors_of(program().ops[i]).empty()) result.push_back(i);
    }
    return result.empty() ? std::nullopt : std::optional(random.one_of(result));
  }
  template <class Kind>
  Kind& get(size_t op) {
    return std::get<Kind>(program().ops[op]);
  }
  void erase(std::vector<Op>& ops, size_t op) { ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(op)); }

  bool backward = false;
  size_t rank = 0;
};

using Mutation = bool (*)(Mutant&);  // false: there is nothing of that kind

}  // namespace tangram::testing
