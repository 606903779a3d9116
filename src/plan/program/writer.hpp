// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// ProgramWriter: hands out regions and collects operations.
#pragma once

#include <set>
#include <span>
#include <vector>

#include "plan/program/emit.hpp"

namespace tangram {

inline constexpr int kAtEnd = -1;  ///< the step of what finishes a pass

class ProgramWriter {
 public:
  explicit ProgramWriter(const ProgramTarget& target) : target_(target) {}

  const ProgramTarget& target() const { return target_; }

  /// Regions of the arena must be asked for in the same order and size on all ranks.
  TensorRef arena(DType dtype, int64_t rows, int heads, int dim) {
    return region(Memory::kArena, dtype, rows, heads, dim);
  }
  TensorRef work(DType dtype, int64_t rows, int heads, int dim) {
    return region(Memory::kWork, dtype, rows, heads, dim);
  }
  TensorRef stored(DType dtype, int64_t rows, int heads, int dim) {
    return region(Memory::kDirectStore, dtype, rows, heads, dim);
  }
  TensorRef returned(DType dtype, int64_t rows, int heads, int dim) {
    return region(Memory::kReturned, dtype, rows, heads, dim);
  }
  FloatRef float_work(int64_t rows, int columns);
  /// The regions so far may be kept.
  void keep_regions() { program_.num_kept = static_cast<int>(program_.regions.size()); }

  RowListsRef add_lists(RowLists lists);
  /// A stage that sends all of its tensors. Not yet cast.
  int add_cast(GroupCast cast);
  void cast(int number);
  void wait(int number);
  void sent(int number) { program_.ops.emplace_back(WaitSendOp{number}); }
  void release_credit(int number) { program_.ops.emplace_back(ReleaseCreditOp{number}); }
  /// Waits for all casts not waited for yet, in the order in which they began.
  void wait_for_all();

  void sum_rows(std::vector<RowSumOp> sums);
  void copy_rows(const TensorRef& source, const TensorRef& result) { sum_rows({{source, {}, result}}); }
  void copy_floats(std::vector<FloatCopyOp> copies);
  void zero(const TensorRef& tensor) { program_.ops.emplace_back(ZeroOp{tensor}); }
  /// `result` becomes the sum of all terms in their order, in float32, rounded once. All have equal rows.
  void sum_in_order(std::span<const TensorRef> terms, const TensorRef& result);
  /// Casts among its arrivals count as waited for.
  void attend(AttendOp op);
  void append(Op op) { program_.ops.push_back(std::move(op)); }
  /// Begins the step or chunk to which the following copies and sums belong.
  template <class Step>
  void begin_step(Step step) {
    step_ = static_cast<int>(step);
  }

  Program take() { return std::move(program_); }

 private:
  TensorRef region(Memory where, DType dtype, int64_t rows, int heads, int dim);

  ProgramTarget target_;
  Program program_;
  std::set<int> under_way_;
  int step_ = 0;
};

/// All rows and heads of a tensor that the caller gives.
TensorRef argument(Memory where, DType dtype, int64_t rows, int heads, int dim);
/// All floats of a region, rows `stride` values apart.
FloatRef floats_of(const TensorRef& memory, int64_t stride);

}  // namespace tangram
