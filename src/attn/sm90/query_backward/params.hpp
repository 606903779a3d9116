// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of the backward kernels that walk gathered keys, as plain data that host and device agree on.
#pragma once

#include <cstdint>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/common/tensor_map.hpp"
#include "schedule/group_work_tiles.hpp"

namespace tangram::sm90::query_backward {

using backward::GradType;
using schedule::GroupWorkTile;
using schedule::kGroupKeys;

inline constexpr int kRows = 128;  // packed rows of a work tile: tokens by heads that share a key head
inline constexpr int kKeys = 128;  // of a step, 64 for each of two consumer warpgroups
inline constexpr int kStepGroups = kKeys / kGroupKeys;
/// Sums of dk or dv of a group, in the fragment order of a warp.
template <int kHeadDim>
inline constexpr int kGroupFloats = kGroupKeys * kHeadDim;
/// Statistics of a work tile: eight bfloat16 a row, in the layout of backward::kStatsFloats.
inline constexpr int kStatsFloats = kRows * 4;

/// Strides are in elements.
struct Params {
  TensorMap q_map;  ///< boxes of a work tile
  TensorMap dout_map;
  TensorMap maps[2][2];  ///< of k and v: boxes of one panel and 16 keys, and of 64 keys
  const GroupWorkTile* work_tiles;
  const int32_t* groups;           ///< schedule::GroupList::groups
  const schedule::RowBits* masks;  ///< schedule::GroupList::masks
  const float* stats;              ///< [num_head_groups, num_tiles, kStatsFloats], tiles in the order of their rows
  float* dk_sums;                  ///< [num_heads_kv, num_key_groups, kGroupFloats], zeros before
  float* dv_sums;
  int32_t* ticket;  ///< zero before
  void* dq;
  int64_t dq_row_stride, dq_head_stride;
  int32_t num_work_tiles;
  int32_t num_tiles;
  int32_t num_head_groups;     ///< each of which has all work tiles; 1 where work tiles name theirs
  int32_t groups_per_section;  ///< head groups whose keys, values and sums share the L2 cache
  int32_t pack_log2;
  int32_t heads_per_kv;
  int32_t num_key_groups;
  float softmax_scale;
  float scale_log2;  ///< softmax_scale * log2(e)
  GradType dq_type;
};

/// The kernels before and after: stats and zeroed sums from out, dout and lse; dk and dv from the sums.
struct PrePostParams {
  const void* out;
  const void* dout;
  const float* lse;    ///< [seqlen_q, num_heads_q]
  const float* delta;  ///< as lse, in place of out and dout; null: made of these
  float* stats;        ///< as in Params
  float* dk_sums;      ///< likewise, and behind it, without a gap, those of dv
  int32_t* ticket;
  void* dk;
  void* dv;
  int64_t out_row_stride, out_head_stride;
  int64_t dout_row_stride, dout_head_stride;
  int64_t dk_row_stride, dk_head_stride;
  int64_t dv_row_stride, dv_head_stride;
  int32_t seqlen_q, seqlen_k;
  int32_t num_heads_q;
  int32_t num_heads_kv;
  int32_t num_tiles;
  int32_t num_head_groups;
  int32_t num_key_groups;
  int32_t pack_log2;
  float softmax_scale;
  bool out_float32;
  GradType dkv_type;
};

}  // namespace tangram::sm90::query_backward
