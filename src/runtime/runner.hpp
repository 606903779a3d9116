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

/// `result = source + addend`, all of equal shape; an addend without memory stands for zeros.
struct RowSum {
  ConstTensorView source;
  ConstTensorView addend;
  TensorView result;
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

/// What the caller of a pass gives. Tensors that a pass only reads are not written.
struct ProgramArguments {
  std::array<TensorView, kNumPlaces> tensors;
  std::array<float*, kNumPlaces> floats{};
  SinkLayout sink_layout = SinkLayout::kSh;
  int64_t seqlen_sink = 0;
  AttnOptions options;

  TensorView& tensor(Place place) { return tensors[static_cast<size_t>(place)]; }
  float*& values(Place place) { return floats[static_cast<size_t>(place)]; }
};

struct DistForwardArgs;
struct DistBackwardArgs;
ProgramArguments arguments_of(const DistForwardArgs& args);
ProgramArguments arguments_of(const DistBackwardArgs& args);

class ProgramRunner {
 public:
  using Masks = std::vector<std::unique_ptr<PreparedMask>>;  ///< of program_masks; null where not needed

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

  virtual void* data(int region) const = 0;
  virtual void before(size_t /*op*/) {}
  virtual void after(size_t /*op*/) {}
  virtual void sum_rows(std::span<const RowSum> sums, int step) = 0;
  virtual void copy_floats(std::span<const FloatCopy> copies, int step) = 0;
  virtual void zero(const TensorView& tensor) = 0;
  virtual void cast(int stage) = 0;
  virtual void wait(int stage) = 0;
  virtual void attend(const AttendOp& op, PreparedMask& mask, AttnForwardArgs& call) = 0;
  virtual void attend(const AttendOp& op, PreparedMask& mask, AttnBackwardArgs& call) = 0;
  /// Those of plans in which queries move: only the host runs them.
  virtual void at_owner(const DeltaOp& op);
  virtual void at_owner(const MergeOp& op);
  virtual void at_owner(const SinkGradOp& op);
  virtual void at_owner(const LargestOp& op);

  const Program& program_;
  const ProgramArguments& arguments_;

 private:
  struct Visitor;

  AttnForwardArgs forward_call(const AttendOp& op) const;
  AttnBackwardArgs backward_call(const AttendOp& op) const;

  const Masks& masks_;
};

}  // namespace tangram
