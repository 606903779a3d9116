// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of the forward kernel, as plain data that host and device agree on.
#pragma once

#include <cstdint>

#include "attn/gpu/ready_flags.hpp"
#include "schedule/kv_splits.hpp"
#include "schedule/local_kv_table.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm80 {

enum class OutType : int32_t { kInput = 0, kFloat32 = 1 };

/// Strides are in elements. Shapes: q and out [seqlen_q, num_heads_q, dim], lse [seqlen_q, num_heads_q]. There are
/// `num_groups` groups of `1 << pack_log2` consecutive query heads that share a K/V head. Packed row r of a tile is
/// query row r / pack of head r % pack.
struct ForwardParams {
  const void* q;
  const void* k;
  const void* v;
  const void* k_local;  ///< of keys that `local_ranges` names, with the strides of k and v
  const void* v_local;
  void* out;
  float* lse;
  float* max_logits;  ///< [num_heads_q] of -inf before the launch, or null
  const float* sink;  ///< null, or num_sinks values a head (per_row: a head of every row), the head innermost
  const MaskTile* work_tiles;
  const TileRange* runs;
  const RowInterval* intervals;
  const int32_t* work_tile_groups;  ///< null, or of each work tile its head group: then `num_groups` is 1
  const int32_t* part_rows;  ///< null, or of each work tile: where in the workspace its rows go, or -1: they are whole
  float* part_out;           ///< the workspace, as in CombineParams
  float* part_lse;
  int32_t* counters;  ///< two zeros; zero again when the kernel ends
  int64_t q_row_stride, q_head_stride;
  int64_t k_row_stride, k_head_stride;
  int64_t v_row_stride, v_head_stride;
  int64_t out_row_stride, out_head_stride;
  int32_t num_work_tiles;
  int32_t num_groups;
  int32_t groups_per_section;  ///< groups whose keys and values fit into the L2 cache together
  int32_t pack_log2;
  int32_t heads_per_kv;
  int32_t num_heads_q;
  int32_t head_dim, head_dim_v;  ///< at most those of the class
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
};

/// Where the parts of query tiles have left their results, for the kernel that combines them.
struct CombineParams {
  const float* out;  ///< [rows of the workspace, num_heads_q, head_dim_v], each part normalised by its own sum
  const float* lse;  ///< [rows of the workspace, num_heads_q]
  const schedule::TileParts* tiles;  ///< [num_tiles]
  int32_t num_tiles;
  int32_t tile_rows;           ///< the most rows of a tile
  int32_t num_heads;           ///< query heads that a tile is of
  const int32_t* first_heads;  ///< of each tile the first of them; null: 0
};

}  // namespace tangram::sm80
