// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of the backward kernels, as plain data that host and device agree on.
#pragma once

#include <cstdint>

#include "attn/gpu/ready_flags.hpp"
#include "attn/sm90/common/tensor_map.hpp"
#include "schedule/key_work_tiles.hpp"
#include "schedule/local_kv_table.hpp"
#include "tangram/dkv_scatter_map.hpp"

namespace tangram::sm90::backward {

// The lists of the kernel are those of src/schedule, as they are.
using schedule::BackwardMaskInfo;
using schedule::DqOrderSegment;
using schedule::kNoTile;
using schedule::kWorkTileDescending;
using schedule::kWorkTileHeadsInside;
using schedule::kWorkTileOddPhase;
using schedule::kWorkTileZeroRows;
using schedule::QueryTile;
using schedule::RangeQueryTiles;
using schedule::Walk;
using schedule::WorkTile;

/// Tiles of a transposed list: keys of a work tile by queries of a step.
inline constexpr TileShape kTileShape{128, 64, true};

enum class GradType : int32_t { kInput = 0, kFloat32 = 1 };

/// Added to Params::split_semaphore for each head split that has drawn its place, see Producer::draw_place.
inline constexpr int32_t kPieceArrived = 1 << 16;

/// Strides are in elements.
struct Params {
  TensorMap q_map;
  TensorMap k_map;
  TensorMap v_map;
  TensorMap dout_map;
  TensorMap k_local_map;  ///< of the tensors that `stretches` speak of
  TensorMap v_local_map;
  const WorkTile* work_tiles;
  const TileRange* runs;
  const RangeQueryTiles* run_tiles;  ///< of each run
  const QueryTile* q_tiles;          ///< [num_q_tiles]
  const RowInterval* intervals;
  const float* stats;               ///< [num_heads_q, num_q_tiles, kStatsFloats]
  float* dq_sums;                   ///< [num_heads_q, num_q_tiles, kBlockM * head_dim of the class], see DqLayout
  const uint64_t* covered_queries;  ///< null, or a bit for each of kBlockM rows from the first of every query tile: 0
                                    ///< where no key sees it
  float* accum_tiles;               ///< [num_accum_tiles, kBlockN * both head dims of the class], where work tiles in
                                    ///< pieces add up
  int32_t* split_semaphore;  ///< [num_accum_tiles], zeros before: how many pieces were added, and kPieceArrived for
                             ///< each that has drawn its place
  int32_t* ticket;           ///< zero before
  const DqOrderSegment* dq_order_segments;  ///< deterministic: see RangeQueryTiles
  int32_t* dq_semaphore;  ///< [num_heads_q, num_q_tiles, 2], zeros before: what was added to each half of an
                          ///< accumulator tile (DqWriter)
  void* dk;
  void* dv;
  const uint32_t* places;  ///< null, or [seqlen_k]: as DkvScatterMap::of_key
  void* dk_final;          ///< kFinalTensor of the places
  void* dv_final;
  void* const* dk_others;  ///< from kFirstOtherTensor on
  void* const* dv_others;
  int64_t dk_row_stride, dk_head_stride;
  int64_t dv_row_stride, dv_head_stride;
  int32_t num_work_tiles;
  int32_t num_q_tiles;  ///< of masks of head groups: the stride of NOTE [tables of masks] in place of it
  float softmax_scale;
  float scale_log2;  ///< softmax_scale * log2(e)
  float cap_inner;   ///< with softcap: softmax_scale / softcap, and softcap * log2(e)
  float cap_outer;
  GradType dkv_type;
  GradType final_type;
  bool accumulate_dkv;  ///< adds to dk and dv, which are float32
  gpu::ReadyFlagParams ready_flags;
  LocalKvParams local_ranges;
  Walk walk;
  bool zeroed_sums;  ///< dq_sums are zeros before; else the first addition stores, and `turns` says whether there was
                     ///< one
  /// Null, or in place of num_work_tiles, walk and zeroed_sums: of a buffer for lists.
  const BackwardMaskInfo* mask_info;
  int32_t head_dim, head_dim_v;  ///< read by kernels for any of a class
};

/// The kernels before and after: stats and zeroed sums from out, dout and lse; dq from the sums.
struct PrePostParams {
  const QueryTile* q_tiles;  ///< as in Params
  const void* out;
  const void* dout;
  const float* lse;  ///< [seqlen_q, num_heads_q]
  float* stats;
  float* dq_sums;
  int32_t* ticket;                  ///< one, or where two kernels share the work two (launch_split)
  int32_t* dq_semaphore;            ///< as in Params, zeros afterwards
  int32_t* split_semaphore;         ///< likewise
  const uint64_t* covered_queries;  ///< as in Params
  void* dq;
  int64_t out_row_stride, out_head_stride;
  int64_t dout_row_stride, dout_head_stride;
  int64_t dq_row_stride, dq_head_stride;
  int32_t num_heads_q;
  int32_t num_q_tiles;
  int32_t num_accum_tiles;  ///< of split_semaphore
  float softmax_scale;
  float lse_factor;  ///< -1 / softmax_scale, to be added to q.k; with softcap -log2(e)
  bool out_float32;
  GradType dq_type;
  bool accumulate_dq;                 ///< adds to dq, which is float32
  bool zeroed_sums;                   ///< as in Params
  bool always_zeroed;                 ///< adds_dq_from_registers
  const float* delta;                 ///< as lse, in place of out and dout; null: made of these
  const BackwardMaskInfo* mask_info;  ///< as in Params; query tiles may then be empty, and their sums are unused
  int32_t head_dim, head_dim_v;       ///< as in Params
  int32_t heads_per_mask;             ///< 0: one mask; else see NOTE [tables of masks], num_q_tiles is that of a table
  void* keys_ready;                   ///< of the host: null, or a cudaEvent_t that the main kernel waits for
};

}  // namespace tangram::sm90::backward
