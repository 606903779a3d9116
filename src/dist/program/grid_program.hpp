// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// GridProgram: a pass of a plan with a grid as a table of operations for memory that only streams may touch. Everything
// is decided when it is written: which bytes lie where, what is sent in which stage, which call attends to what.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "tangram/attention.hpp"
#include "tangram/exchange.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// NOTE [arena]: everything that is sent or received in a pass lies in one landing tensor of a DevicePass, in rows of
/// kArenaUnit bytes, which is also the source of every cast. Offsets are alike on all ranks, so tables need no
/// exchange. Nothing in it is used twice in a pass: what one rank still reads is never overwritten by another.
inline constexpr int64_t kArenaUnit = 16;

enum class Place : int {
  kNone = 0,
  kArena,  ///< the landing tensor of the open epoch
  kWork,   ///< memory of this rank alone, free again after the pass
  kQ,      ///< arguments of the pass, and so on
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
inline constexpr int kNumPlaces = static_cast<int>(Place::kMaxLogits) + 1;

/// Some rows and heads of a tensor. In arena and work it is contiguous, starts at byte `offset` and has all its heads;
/// of arguments, dtype and strides are those that the caller gives.
struct TensorRef {
  Place place = Place::kNone;
  int64_t offset = 0;
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

/// float32 values from value `offset` on, rows `stride` values apart.
struct FloatRef {
  Place place = Place::kNone;
  int64_t offset = 0;
  int64_t stride = 0;

  friend bool operator==(const FloatRef&, const FloatRef&) = default;
};

/// `result = source`, or `source + addend` where there is one: summed in float32, rounded once.
struct RowSumOp {
  TensorRef source;
  TensorRef addend;
  TensorRef result;
};
/// Sums that do not depend on each other.
struct RowSumsOp {
  std::vector<RowSumOp> sums;
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
};

struct ZeroOp {
  TensorRef tensor;
};
struct CastOp {
  int stage = 0;
};
struct WaitOp {
  int stage = 0;
};

struct AttendOp {
  bool backward = false;
  int mask = 0;  ///< of grid_masks
  TensorRef q, k, v, out;
  FloatRef lse;
  FloatRef sink;            ///< kNone: none in this call
  FloatRef max_logits;      ///< forward; kNone: the caller wants none, or these come from nowhere
  bool accumulate = false;  ///< out and lse; backward, dq
  TensorRef dout, dq, dk, dv;
  FloatRef dsink;
  bool beside_transfers = false;
  int stage = 0;  ///< chunk of heads or step between row groups
};

using GridOp = std::variant<RowSumsOp, FloatCopiesOp, ZeroOp, CastOp, WaitOp, AttendOp>;

struct GridProgram {
  std::vector<GridOp> ops;
  std::vector<Exchange> casts;  ///< by stage, in units of the arena on both sides
  int64_t arena_bytes = 0;
  int64_t work_bytes = 0;

  /// Bytes that this rank receives.
  int64_t bytes_received() const;
};

/// What a program computes: one for each step between row groups and each number of heads in a chunk.
struct GridMask {
  AttnShape shape;
  std::vector<AttnSlice> slices;
  bool needed = true;  ///< something is to be computed, or results have to be set
};
std::vector<GridMask> grid_masks(const Plan& plan, int rank);

/// What a caller of a pass wants besides.
struct GridCallShape {
  /// Of out, dq, dk and dv where heads are exchanged: they travel in it.
  DType result_dtype = DType::kBFloat16;
  int64_t seqlen_sink = 0;
  SinkLayout sink_layout = SinkLayout::kSh;

  friend auto operator<=>(const GridCallShape&, const GridCallShape&) = default;
};

/// Casts and offsets do not depend on a sink of all rows; sinks of single rows are sent where heads are exchanged.
GridProgram forward_program(const Plan& plan, int rank, const GridCallShape& call);
/// `kept`: q, k, v, out and lse of all rows still lie in the arena, where the forward program put them.
GridProgram backward_program(const Plan& plan, int rank, const GridCallShape& call, bool kept);

}  // namespace tangram
