// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention of the rows of a row group for one chunk of heads, with all of K/V, written as operations. It is the rest
// of a step after the head exchange, for each way in which K/V blocks move between row groups.
#pragma once

#include <functional>

#include "plan/program/writer.hpp"

namespace tangram {

/// Whose program is written.
struct GridRank {
  const Plan& plan;
  int rank = 0;

  const GridPlan& grid() const { return *plan.grid(); }
  int group() const { return rank / grid().ulysses_degree; }
  int member() const { return rank % grid().ulysses_degree; }
  /// The rank of another row group that holds the same heads.
  int rank_of(int row_group) const { return row_group * grid().ulysses_degree + member(); }
  const std::vector<GridStep>& steps() const { return grid().steps[static_cast<size_t>(group())]; }
  /// Whether step `s` is to be computed; the first one always is, because it sets results.
  bool computes(size_t s) const { return s == 0 || !steps()[s].slices.empty(); }
  int64_t group_q_rows() const { return plan.q_dispatch.rows_per_rank() * grid().ulysses_degree; }
  int64_t block_rows() const { return plan.k_dispatch.rows_per_rank() * grid().ulysses_degree; }
  /// Whether kernels can write results in `dtype`.
  bool kernels_write(DType dtype) const { return dtype == DType::kFloat32 || dtype == plan.config.heads.dtype; }
};

/// Operands of one chunk: rows of the row group in global order. `call.mask` is that of step 0, those of the following
/// steps come after it.
struct RowCall {
  AttendOp call;
  DType result_dtype = DType::kBFloat16;  ///< of out, or dq
  DType dk_dtype = DType::kFloat32;
  DType dv_dtype = DType::kFloat32;
};

void write_rows_forward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows);
void write_rows_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows);

// Operations of RowMove::kRing.
void write_ring_forward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows);
void write_ring_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows);
// Operations of RowMove::kSubRings.
void write_sub_rings_forward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows);
void write_sub_rings_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows);

/// First block of an earlier step whose memory block `next` can reuse (NOTE [blocks of a ring], rings.cpp). No other
/// block has taken its memory, and its last use is early enough. Each block is used and sent on in its own step. -1:
/// none.
int reusable_block(const ProgramWriter& writer, const GridRank& rank, const std::vector<bool>& is_taken, size_t next);

/// K and V, or their gradients.
struct PairRef {
  TensorRef k, v;
};
inline PairRef slice(const PairRef& pair, Range rows) { return {pair.k.slice(rows), pair.v.slice(rows)}; }
void append_copies(std::vector<RowSumOp>& sums, const PairRef& source, const PairRef& result);
void zero(ProgramWriter& writer, const PairRef& pair);
/// Step after step, each adding to what those before it left: `advance(step)` writes what moves blocks, `kv_of(step)`
/// says where the keys of a step lie.
void write_steps_forward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows,
                         const std::function<void(size_t)>& advance, const std::function<PairRef(size_t)>& kv_of);
/// Adds to `dq`, and leaves in `made` what the step contributes to the gradients of `kv`, be it nothing.
void write_step_backward(ProgramWriter& writer, const GridRank& rank, const RowCall& rows, size_t step,
                         const PairRef& kv, const TensorRef& dq, const PairRef& made);
/// Made of `like`'s heads.
PairRef arena_pair(ProgramWriter& writer, DType dtype, int64_t rows, const PairRef& like);
PairRef work_pair(ProgramWriter& writer, DType dtype, int64_t rows, const PairRef& like);
/// Keys and values where they can be sent from: copied into the arena where the target needs that.
PairRef sendable(ProgramWriter& writer, const PairRef& own, DType dtype);
/// A cast of the rows of both; `cast` says the rest.
int add_pair_cast(ProgramWriter& writer, const std::shared_ptr<const Exchange>& exchange, const PairRef& source,
                  const PairRef& target, const char* label, GroupCast cast);
/// Where calls that accumulate put out or dq: `result` itself if it is float32, else memory for its sum.
TensorRef sum_for(ProgramWriter& writer, const TensorRef& result, DType result_dtype);

}  // namespace tangram
