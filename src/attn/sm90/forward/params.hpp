// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of the forward kernel, as plain data that host and device agree on.
#pragma once

#include <cstdint>

#include "attn/gpu/ready_flags.hpp"
#include "attn/sm90/common/tensor_map.hpp"
#include "schedule/kv_splits.hpp"
#include "schedule/local_kv_table.hpp"

namespace tangram::sm90 {

enum class OutType : int32_t { kInput = 0, kFloat32 = 1 };

/// packed_row / pack is packed_row * (packing >> 16) >> kPackingShift, and pack the lower half: exact while packed_row
/// * pack is below 2^15.
inline constexpr int kPackingShift = 15;
constexpr uint32_t packing_of(uint32_t pack) { return ((uint32_t{1} << kPackingShift) + pack - 1) / pack << 16 | pack; }

/// Strides are in elements. Shapes: q and out [seqlen_q, num_heads_q, head_dim], lse [seqlen_q, num_heads_q]. There are
/// `num_groups` groups of `pack` consecutive query heads that share a K/V head.
struct ForwardParams {
  TensorMap q_map;
  TensorMap k_map;
  TensorMap v_map;
  TensorMap k_local_map;  ///< of the tensors that `stretches` speak of
  TensorMap v_local_map;
  TensorMap out_map;  ///< boxes of one panel and a warpgroup's rows; used when out_type is kInput
  void* out;
  float* lse;
  float* max_logits;  ///< [num_heads_q] of -inf before the launch, or null
  const float* sink;  ///< null, or num_sinks values a head (per_row: a head of every row), the head innermost
  const MaskTile* work_tiles;
  const TileRange* runs;
  const RowInterval* intervals;
  int32_t* counters;  ///< two zeros; zero again when the kernel ends
  int64_t out_row_stride;
  int64_t out_head_stride;
  int64_t lse_row_stride;
  int32_t num_work_tiles;
  int32_t num_groups;
  int32_t groups_per_section;  ///< groups whose keys and values fit into the L2 cache together
  int32_t pack_log2;
  int32_t heads_per_kv;
  int32_t num_heads_q;
  int32_t seqlen_k;
  float softmax_scale;
  float softcap;
  float inner_scale;        ///< softmax_scale / softcap
  float exp_scale;          ///< what scores (after softcap) are multiplied by under exp2
  float rescale_threshold;  ///< by how much a row maximum may exceed the reference before that moves, in scores
  int32_t num_sinks;
  bool sink_per_row;
  bool accumulate;  ///< out (float32) and lse hold an earlier part, to be merged with
  OutType out_type;
  gpu::ReadyFlagParams ready_flags;
  LocalKvParams local_ranges;
  const int32_t* part_rows;  ///< of each work tile: where in the workspace its rows go, or -1 for those of whole tiles
  float* part_out;           ///< the workspace, as in MergeParams
  float* part_lse;
  int32_t head_dim_v;               ///< of v and out: read by kernels for any of a class
  uint32_t packing;                 ///< of kernels whose packs may be any number, in place of pack_log2: see packing_of
  const int32_t* work_tile_groups;  ///< null, or of each work tile its head group: then `num_groups` is 1
};

/// Parameters for lists with gathered runs.
struct GatheredParams : ForwardParams {
  /// Tensor maps of k and v, in this order: boxes of one panel and 16 keys, and of 64 keys.
  TensorMap maps[2][2];
  TensorMap local_kv_maps[2][2];
  const int32_t* groups;  ///< schedule::GatheredList::groups
};

/// Where the parts of query tiles have left their results, for the kernel that merges them.
struct MergeParams {
  const float* out;  ///< [rows of the workspace, num_heads_q, head_dim], each part normalised by its own sum
  const float* lse;  ///< [rows of the workspace, num_heads_q]
  const schedule::TileParts* tiles;  ///< [num_tiles]
  int32_t num_tiles;
  int32_t tile_rows;           ///< the most rows of a tile
  int32_t num_heads;           ///< query heads that a tile is of
  const int32_t* first_heads;  ///< of each tile the first of them; null: 0
};

}  // namespace tangram::sm90
