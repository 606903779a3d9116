// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// ProgramRunner: what interpreters of programs share, whatever memory they work on: it finds the tensors that
// operations name and makes the calls of attention. What differs is left to those who inherit.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "plan/program/program.hpp"
#include "tangram/attention.hpp"

namespace tangram {

/// RowListsRef, where the runner's memory is: to row i belong rows `rows[begins[i]]` to `rows[begins[i + 1] - 1]`.
struct RowListsView {
  const int32_t* begins = nullptr;  ///< null: to each row belongs the same row
  const int32_t* rows = nullptr;
};

/// `result = source + addend`, all of equal heads and dim; what has no memory stands for zeros. Of equal rows, or of
/// the addend all rows that belong to each row: added up first, in order, from zero on.
struct RowSum {
  ConstTensorView source;
  ConstTensorView addend;
  TensorView result;
  RowListsView addend_rows = {};
};

/// Partial results of rows: out [rows, heads, dim] float32, lse [rows, heads, 1] float32.
struct PartialRows {
  TensorView out;
  TensorView lse;
};

/// The sinks of the heads of some rows: those of a row are `stride` values apart.
struct SinkRows {
  Sink sink;
  int stride = 0;
};

/// Rows of `columns` values, `from_stride` and `to_stride` values apart; without `from` all become `value`.
struct FloatCopy {
  const float* from = nullptr;
  float* to = nullptr;
  int64_t from_stride = 0;
  int64_t to_stride = 0;
  int64_t rows = 0;
  int columns = 0;
  float value = 0;
};

/// Arguments of a pass. Tensors that a pass only reads are not written.
struct ProgramArguments {
  std::array<TensorView, kNumMemories> tensors;
  std::array<float*, kNumMemories> floats{};
  SinkLayout sink_layout = SinkLayout::kSh;
  int64_t seqlen_sink = 0;
  AttnOptions options;

  TensorView& tensor(Memory where) { return tensors[static_cast<size_t>(where)]; }
  float*& values(Memory where) { return floats[static_cast<size_t>(where)]; }
};

struct DistForwardArgs;
struct DistBackwardArgs;
ProgramArguments arguments_of(const DistForwardArgs& args);
ProgramArguments arguments_of(const DistBackwardArgs& args);

class ProgramRunner {
 public:
  using Masks = std::vector<std::unique_ptr<MaskSlot>>;  ///< of program_masks; null where not needed

  virtual ~ProgramRunner() = default;
  ProgramRunner(const ProgramRunner&) = delete;
  ProgramRunner& operator=(const ProgramRunner&) = delete;

  /// Operation by operation.
  void run();

 protected:
  /// All are referred to.
  ProgramRunner(const Program& program, const ProgramArguments& arguments, const Masks& masks)
      : program_(program), arguments_(arguments), masks_(masks) {}

  TensorView view(const TensorRef& ref) const;
  float* floats(const FloatRef& ref) const;
  Sink sink(const FloatRef& ref) const;

  SinkRows sinks(const FloatRef& ref) const { return {sink(ref), static_cast<int>(ref.stride)}; }

  virtual void* data(int region) const = 0;
  /// Program::row_lists[number]; programs for the host have none.
  virtual RowListsView row_lists(int number) const;
  RowListsView row_lists(const RowListsRef& ref) const;
  /// Operations that programs for the host do not have.
  virtual void open(const OpenOp& op);
  virtual void finish(const FinishOp& op);
  virtual void wait_send(int cast);
  virtual void release_credit(int cast);
  virtual void before(size_t /*op*/) {}
  virtual void after(size_t /*op*/) {}
  virtual void sum_rows(std::span<const RowSum> sums, int step) = 0;
  virtual void copy_floats(std::span<const FloatCopy> copies, int step) = 0;
  virtual void zero(const TensorView& tensor) = 0;
  virtual void cast(int number) = 0;
  virtual void wait(int number) = 0;
  virtual void attend(const AttendOp& op, MaskSlot& mask, AttnForwardArgs& call) = 0;
  virtual void attend(const AttendOp& op, MaskSlot& mask, AttnBackwardArgs& call) = 0;
  virtual void at_owner(const DeltaOp& op) = 0;
  virtual void at_owner(const MergeOp& op) = 0;
  virtual void at_owner(const SinkGradOp& op) = 0;
  virtual void at_owner(const LargestOp& op) = 0;

  const Program& program_;
  const ProgramArguments& arguments_;

 private:
  struct Visitor;

  /// Arguments that calls of both passes share.
  template <class Call>
  Call call_of(const AttendOp& op) const;
  AttnForwardArgs forward_call(const AttendOp& op) const;
  AttnBackwardArgs backward_call(const AttendOp& op) const;

  const Masks& masks_;
};

}  // namespace tangram
