// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Program: a pass of a plan as a list of operations. Everything is decided when it is written: what is sent when, which
// call attends to what, what is added to what. Runners only interpret it (src/runtime).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "tangram/dtype.hpp"
#include "tangram/exchange.hpp"

namespace tangram {

/// Where values lie: in a region of the program, or in what the caller gives.
enum class Memory : int {
  kNone = 0,
  kArena,  ///< a region that rows of other ranks are sent from or land in
  kWork,   ///< a region of this rank alone
  /// A region of this rank that takes no memory: rows that a call of attention stores where they belong, at their
  /// owners too (AttendOp::stores).
  kDirectStore,
  /// A region of zeros to which casts add, in memory of the transport's; FinishOp alone reads it.
  kReturned,
  kQ,  ///< arguments of the pass, and so on
  kK,
  kV,
  kOut,
  kDout,
  kDq,
  kDk,
  kDv,
  kLse,
  kSink,
  kDsink,
  kMaxLogits,
};
inline constexpr int kNumMemories = static_cast<int>(Memory::kMaxLogits) + 1;

/// Memory that a pass needs besides its arguments, contiguous `[rows, heads, dim]`. Undefined content when the pass
/// begins, free when it ends. Nothing in it is used twice, except by credited casts. Regions of kArena are alike on all
/// ranks of a program, in number, order and size.
struct Region {
  Memory memory = Memory::kWork;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int heads = 0;
  int dim = 0;

  int64_t bytes() const { return rows * heads * dim * static_cast<int64_t>(size_of(dtype)); }

  friend bool operator==(const Region&, const Region&) = default;
};

/// Some rows and heads of a tensor. What casts name of a region has all of its heads; of arguments, dtype and strides
/// are those that the caller gives.
struct TensorRef {
  Memory memory = Memory::kNone;
  int region = -1;
  DType dtype = DType::kFloat32;
  int64_t first_row = 0;
  int64_t rows = 0;
  int first_head = 0;
  int heads = 0;
  int dim = 0;

  int64_t row_bytes() const { return int64_t{heads} * dim * static_cast<int64_t>(size_of(dtype)); }
  /// Rows of these rows.
  TensorRef slice(Range range) const;

  friend bool operator==(const TensorRef&, const TensorRef&) = default;
};

/// float32 values from value `offset` of the region or the argument on, rows `stride` values apart.
struct FloatRef {
  Memory memory = Memory::kNone;
  int64_t offset = 0;
  int64_t stride = 0;
  int region = -1;

  friend bool operator==(const FloatRef&, const FloatRef&) = default;
};

/// Tables may be as long as a plan: programs share them, and borrow those of the plan, which must outlive them.
inline std::shared_ptr<const Exchange> shared(Exchange table) {
  return std::make_shared<const Exchange>(std::move(table));
}
inline std::shared_ptr<const Exchange> borrowed(const Exchange& of_plan) {
  return {std::shared_ptr<const Exchange>(), &of_plan};
}

/// Rows of one tensor that belong to rows of another: to row i rows `rows[begins[i]]`, ... before `rows[begins[i +
/// 1]]`, in this order.
struct RowLists {
  std::vector<int32_t> begins = {0};
  std::vector<int32_t> rows;

  int64_t size() const { return static_cast<int64_t>(begins.size()) - 1; }
};
/// Entries `first` and following of Program::row_lists[lists], one for each row; -1: to each row belongs the same row.
struct RowListsRef {
  int lists = -1;
  int64_t first = 0;

  friend bool operator==(const RowListsRef&, const RowListsRef&) = default;
};

/// Rows of `source` to rows of `target`, which have equal row bytes: of each rank's `source`, by its own exchange.
struct GroupCastTensor {
  std::shared_ptr<const Exchange> exchange;
  TensorRef source;
  TensorRef target;
  const char* label = "";
};
/// Tensors that are sent together. `results`: partial results on their way to their owners; else operands.
struct GroupCast {
  std::vector<GroupCastTensor> items;
  bool results = false;
  int step = 0;
  /// Returned rows: the rows of `source` that the exchange names as received go back the way of the exchange. They are
  /// added to those of `target` that it names as sent, in rank order, in float32. The targets hold something, and
  /// several casts may add to a row.
  bool adds = false;
  /// Group-cast that adds: its tensors are out and lse of partial results, which are combined by lse instead of added.
  bool by_lse = false;
  /// Between the rows of a rank and its heads.
  bool exchanges_heads = false;
  /// Whether the cast needs a credit: on streams, its targets were used before in the pass. No rank sends before the
  /// receiver has given the credit (ReleaseCreditOp), which its GroupCastOp takes. The same on all ranks.
  bool credited = false;
};

/// `result = source`, or `source + addend` where there is one: summed in float32, rounded once. No source: zeros. Where
/// several rows of the addend belong to a row of the result they are added up first, in order, from zero on.
struct RowSumOp {
  TensorRef source;
  TensorRef addend;
  TensorRef result;
  RowListsRef addend_rows = {};
};
/// Sums that do not depend on each other.
struct RowSumsOp {
  std::vector<RowSumOp> sums;
  int step = 0;  ///< that they belong to; -1: they finish the pass
};

/// First operation of a plan with K/V communication on a stream: copies of own rows into the receive buffers, made with
/// the opening of the pass.
struct OpenOp {
  std::vector<RowSumOp> own;
};

/// `rows` times `columns` values; without a source all become `value`.
struct FloatCopyOp {
  FloatRef from;
  FloatRef to;
  int64_t rows = 0;
  int columns = 0;
  float value = 0;
};
struct FloatCopiesOp {
  std::vector<FloatCopyOp> copies;
  int step = 0;
};

/// All rows that it names.
struct ZeroOp {
  TensorRef tensor;
};
/// Starts Program::casts[cast]; nothing that it reads or writes is touched until the WaitOp. On streams that one is for
/// what the cast brings, and WaitSendOp for what it reads.
struct GroupCastOp {
  int cast = 0;
};
struct WaitOp {
  int cast = 0;
};
struct WaitSendOp {
  int cast = 0;
};
/// Releases the credit of a credited cast that this rank does not begin here: its targets are free on this rank. Work
/// that used them is enqueued, and casts that read them have been sent. They may write from now on.
struct ReleaseCreditOp {
  int cast = 0;
};

struct AttendOp {
  bool backward = false;
  int mask = 0;  ///< of program_masks
  TensorRef q, k, v, out;
  FloatRef lse;
  FloatRef sink;            ///< kNone: none in this call
  FloatRef max_logits;      ///< forward; kNone: the caller wants none, or these come from nowhere
  bool accumulate = false;  ///< out and lse; backward, dq
  TensorRef dout, dq, dk, dv;
  bool accumulate_kv = false;  ///< dk and dv, of keys that the mask shows; others are not touched
  FloatRef dsink;
  FloatRef delta;  ///< backward; kNone: computed from out, else that is not read
  bool beside_transfers = false;
  int step = 0;        ///< stage, chunk of heads, or step between row groups
  int next_cast = -1;  ///< of those with operands that are under way the one that comes next; -1: none is

  // Where a stream runs a plan that moves K/V alone:
  TensorRef k_local, v_local;    ///< hold the keys of ProgramMask::ranges; kNone: all lie in k and v
  std::vector<int> ready_flags;  ///< casts under way for whose keys the call waits itself, each when needed
  /// Copies that the call makes by itself: of rows of dk and dv, of kDirectStore, to where they belong. What casts send
  /// of these it stores at the owners.
  std::vector<RowSumOp> stores;
  TensorRef stored_dk, stored_dv;  ///< the tensors of kWork that these go to, where not to results
};

/// Last: ends all casts that add to kReturned, and closes the pass. Rows of `results` become those of `own` plus the
/// returned rows, summed in float32 in rank order, rounded once. `absent` rows of `own` count as zeros; rows that are
/// `left` stay unchanged. Both ascending, of the shard.
struct FinishOp {
  TensorRef own_k, own_v, dk, dv;
  std::vector<Range> left, absent;
};

// What the owner of queries does that others compute for; `lse` and `delta` have dim 1. Sinks are those of the heads of
// the tensors, `stride` values from one to the next.

/// delta = rowsum(dout * out): what moves in place of out.
struct DeltaOp {
  TensorRef out, dout, delta;
};
/// `out` and `lse` become the result of their keys, those of the others (kNone: none) and the sink (kNone: none), in
/// this order. `other_rows`: the rows of the others that belong to each row.
struct MergeOp {
  TensorRef out, lse, other_out, other_lse;
  FloatRef sink;
  RowListsRef other_rows = {};
};
/// `dsink` from the final lse, and delta.
struct SinkGradOp {
  TensorRef lse, delta;
  FloatRef sink, dsink;
};
/// Each of `columns` values of `to` becomes the largest of its column of `from`.
struct LargestOp {
  FloatRef from, to;
  int64_t rows = 0;
  int columns = 0;
};

using Op = std::variant<RowSumsOp, FloatCopiesOp, ZeroOp, GroupCastOp, WaitOp, AttendOp, DeltaOp, MergeOp, SinkGradOp,
                        LargestOp, OpenOp, FinishOp, WaitSendOp, ReleaseCreditOp>;

struct Program {
  std::vector<Op> ops;
  std::vector<Region> regions;
  std::vector<GroupCast> casts;
  std::vector<RowLists> row_lists;
  /// The first regions, which a forward pass may leave to its backward pass: what that computes with.
  int num_kept = 0;

  /// Whether it ends by closing its pass.
  bool closes() const { return !ops.empty() && std::holds_alternative<FinishOp>(ops.back()); }
};

}  // namespace tangram
