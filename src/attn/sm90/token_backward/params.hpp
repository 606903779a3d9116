// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of the backward kernels for token indices, as plain data that host and device agree on.
#pragma once

#include <cstdint>

#include "attn/sm90/query_backward/params.hpp"

namespace tangram::sm90::token_backward {

using backward::GradType;
using query_backward::kKeys;
using query_backward::kRows;
using query_backward::kStatsFloats;

inline constexpr int kOrderedHeadDim = 128;            // of deterministic calls
inline constexpr int kBlockRows = 8;                   // a bit of an entry stands for so many rows of a work tile
inline constexpr int kRowBlocks = kRows / kBlockRows;  // and there are so many

/// Layout of a work tile's kRows rows: `tokens` consecutive queries with `rows_per_token` rows each, one for each head
/// of a K/V head. The last rows of a token may be no heads; rows behind the last query are unused. More heads than
/// kRows are parts of equal size, as few as can be.
struct Packing {
  int32_t parts;  ///< of the query heads of a K/V head; "head groups" are these, through all K/V heads
  int32_t heads;  ///< of a part
  int32_t rows_per_token;
  int32_t tokens;
};
constexpr Packing packing_of(int32_t heads_per_kv) {
  int32_t parts = (heads_per_kv + kRows - 1) / kRows;
  while (heads_per_kv % parts != 0) ++parts;
  const int32_t heads = heads_per_kv / parts, rows = (heads + kBlockRows - 1) / kBlockRows * kBlockRows;
  return {parts, heads, rows, kRows / rows};
}

/// The list of a work tile of several queries: how many keys, and which blocks of its rows see any.
struct alignas(8) ListHead {
  int32_t count;
  uint32_t seen_blocks;
};

/// Added to keys of lists of several queries whose k, or v, holds NaN. Queries that see such a key have NaN in lse, or
/// delta, and so in their gradients. For the others of the work tile its k, or v, is loaded as zeros, since 0 * NaN is
/// NaN.
inline constexpr int32_t kNanInK = 1 << 29, kNanInV = 1 << 30;

/// Work tiles are counted through all head groups, `work_tiles_per_group` each. A call may be made by parts, of
/// `num_work_tiles` work tiles from `first_work_tile` on, that use the same memory for their lists.
struct ListParams {
  const int32_t* indices;  ///< [seqlen_q, num_heads_kv, topk]
  const int32_t* counts;   ///< [num_heads_kv, seqlen_q]; of each list so many are to be walked, -1 or keys
  const uint8_t* nans;     ///< [2, num_heads_kv, (seqlen_k + 7) / 8]: bit i: k (or v) of key i of eight holds NaN
  int32_t* keys;         ///< [num_work_tiles, capacity]; each key that a query of the work tile sees once, see kNanInK
  uint16_t* row_blocks;  ///< likewise; bit i: rows from kBlockRows * i on see the key
  ListHead* heads;       ///< [num_work_tiles]
  Packing packing;
  int32_t seqlen_q, seqlen_k;
  int32_t num_heads_kv;
  int32_t topk;
  int32_t capacity;  ///< of a work tile's list
  int32_t first_work_tile;
  int32_t work_tiles_per_group;
};

/// Strides are in elements.
struct Params {
  TensorMap q_map;  ///< boxes of one panel of a query's heads
  TensorMap dout_map;
  const void* keys[2];  ///< k, v
  int64_t key_head_bytes[2];
  int32_t key_row_bytes[2];
  ListParams lists;    ///< of work tiles of one query: indices and counts, no more
  const float* stats;  ///< of all work tiles, kStatsFloats each
  float* dk_sums;      ///< [num_heads_kv, seqlen_k, head_dim], columns as sum_column has them; zeros before. Of
                       ///< deterministic calls CollectParams::shares
  float* dv_sums;
  int32_t* ticket;  ///< zero before
  void* dq;
  int64_t dq_row_stride, dq_head_stride;
  int32_t num_work_tiles;  ///< of the part
  float softmax_scale;
  float scale_log2;  ///< softmax_scale * log2(e)
  GradType dq_type;
};

/// Deterministic calls: adds what the work tiles of a part gave to their keys to the sums.
struct CollectParams {
  ListParams lists;
  const float*
      shares[2];   ///< dk, dv: [num_work_tiles, capacity, head_dim], columns as those of sums; a row for each entry
  float* sums[2];  ///< as Params::dk_sums, dv_sums of other calls
  int32_t num_work_tiles;  ///< of the part
};

/// The kernels before and after: stats and zeroed sums from out, dout and lse; dk and dv from the sums.
struct PrePostParams {
  const void* out;
  const void* dout;
  const float* lse;       ///< [seqlen_q, num_heads_q]
  const int32_t* counts;  ///< as in ListParams
  float* stats;           ///< as in Params
  float* dk_sums;         ///< likewise, and behind it, without a gap, those of dv
  int32_t* tickets;       ///< of each part; set to zero
  uint8_t* nans;          ///< as in ListParams, or null: not wanted
  const void* keys[2];    ///< as in Params, from here to key_row_bytes
  int64_t key_head_bytes[2];
  int32_t key_row_bytes[2];
  void* dk;
  void* dv;
  int64_t out_row_stride, out_head_stride;
  int64_t dout_row_stride, dout_head_stride;
  int64_t dk_row_stride, dk_head_stride;
  int64_t dv_row_stride, dv_head_stride;
  Packing packing;
  int32_t seqlen_q, seqlen_k;
  int32_t num_heads_kv;
  int32_t work_tiles_per_group;
  int32_t num_parts;
  float softmax_scale;
  bool out_float32;
  GradType dkv_type;
};

}  // namespace tangram::sm90::token_backward
