// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// ProgramWriter: hands out memory, collects operations, and turns tables of rows into tables of arena units.
#pragma once

#include <set>
#include <span>
#include <vector>

#include "dist/program/grid_program.hpp"

namespace tangram {

/// One tensor of a cast: rows of `source` to rows of `target`, both in the arena, with equal rows.
struct CastItem {
  Exchange exchange;
  TensorRef source;
  TensorRef target;
};

class ProgramWriter {
 public:
  /// Memory of the arena must be asked for in the same order and size on all ranks.
  TensorRef arena(DType dtype, int64_t rows, int heads, int dim);
  TensorRef work(DType dtype, int64_t rows, int heads, int dim);
  FloatRef float_work(int64_t rows, int columns);

  /// A stage that sends all of `items`; sources and targets ascend in the arena. Not yet cast.
  int add_stage(std::span<const CastItem> items);
  void cast(int stage);
  void wait(int stage);

  void sum_rows(std::vector<RowSumOp> sums);
  void copy_rows(const TensorRef& source, const TensorRef& result) { sum_rows({{source, {}, result}}); }
  void copy_floats(std::vector<FloatCopyOp> copies);
  void zero(const TensorRef& tensor) { program_.ops.emplace_back(ZeroOp{tensor}); }
  /// `result` becomes the sum of all terms in their order, in float32, rounded once. All have equal rows.
  void sum_in_order(std::span<const TensorRef> terms, const TensorRef& result);
  void attend(AttendOp op);

  GridProgram take() { return std::move(program_); }

 private:
  GridProgram program_;
  std::set<int> under_way_;
};

}  // namespace tangram
