// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of the backward kernels, as plain data that host and device agree on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attn/gpu/ready_flags.hpp"
#include "schedule/key_work_tiles.hpp"
#include "schedule/local_kv_table.hpp"
#include "tangram/dkv_scatter_map.hpp"

namespace tangram::sm80::backward {

// The lists of the kernel are those of src/schedule, as they are.
using schedule::BackwardMaskInfo;
using schedule::DqOrderSegment;
using schedule::QueryTile;
using schedule::RangeQueryTiles;
using schedule::Walk;
using schedule::WorkTile;

enum class GradType : int32_t { kInput = 0, kFloat32 = 1 };

/// Added to Params::split_semaphore for each head split that has drawn its place; 1 for each that was added.
inline constexpr int32_t kPieceArrived = 1 << 16;

/// Statistics of a query row for its scores and their gradients.
struct alignas(8) RowStatistics {
  float lse_log2;  ///< lse * log2(e)
  float delta;     ///< rowsum(dout * out)
};

/// Strides are in elements.
struct Params {
  const void* q;
  const void* k;
  const void* v;
  const void* k_local;  ///< of keys that `local_ranges` names, with the strides of k and v
  const void* v_local;
  const void* dout;
  const WorkTile* work_tiles;
  const TileRange* runs;
  const RangeQueryTiles* run_tiles;  ///< of each run
  const QueryTile* q_tiles;          ///< [num_q_tiles]
  const RowInterval* intervals;
  const uint64_t* covered_queries;          ///< null, or a bit for each of kStepQueries rows from the first of every
                                            ///< query tile: 0 where no key sees it
  const DqOrderSegment* dq_order_segments;  ///< deterministic: see RangeQueryTiles
  const RowStatistics* stats;               ///< [num_heads_q, num_q_tiles, kStepQueries]
  float* dq_sums;      ///< [num_heads_q, num_q_tiles, kStepQueries * head_dim of the class], zeros before, as fragments
  float* accum_tiles;  ///< [num_accum_tiles, keys * both head dims of the class], where head splits add up
  int32_t* split_semaphore;  ///< [num_accum_tiles], zeros before: how many head splits were added, and kPieceArrived
                             ///< for each that has drawn its place
  int32_t* dq_semaphore;     ///< [num_heads_q, num_q_tiles], zeros before: how many additions there were, in order
  int32_t* ticket;           ///< zero before
  void* dk;
  void* dv;
  int64_t q_row_stride, q_head_stride;
  int64_t k_row_stride, k_head_stride;
  int64_t v_row_stride, v_head_stride;
  int64_t dout_row_stride, dout_head_stride;
  int64_t dk_row_stride, dk_head_stride;
  int64_t dv_row_stride, dv_head_stride;
  int32_t num_work_tiles;
  int32_t num_q_tiles;           ///< of masks of head groups: the stride of NOTE [tables of masks] in place of it
  int32_t head_dim, head_dim_v;  ///< at most those of the class
  float softmax_scale;
  float scale_log2;  ///< softmax_scale * log2(e)
  float cap_inner;   ///< with softcap: softmax_scale / softcap, and softcap * log2(e)
  float cap_outer;
  GradType dkv_type;
  bool accumulate_dkv;  ///< adds to dk and dv, which are float32
  bool deterministic;
  Walk walk;
  const BackwardMaskInfo* mask_info;  ///< null, or in place of num_work_tiles and walk
  gpu::ReadyFlagParams ready_flags;
  LocalKvParams local_ranges;
  const uint32_t* places;  ///< null, or as DkvScatterMap has them
  void* dk_final;
  void* dv_final;
  void* const* dk_others;
  void* const* dv_others;
  GradType final_type;
};

/// The kernels before and after: statistics and zeroed sums from out, dout and lse; dq from the sums.
struct PrePostParams {
  const QueryTile* q_tiles;         ///< as in Params
  const uint64_t* covered_queries;  ///< likewise
  const void* out;
  const void* dout;
  const float* lse;    ///< [seqlen_q, num_heads_q]
  const float* delta;  ///< as lse, in place of out and dout; null: made of these
  RowStatistics* stats;
  float* dq_sums;
  int32_t* split_semaphore;
  int32_t* dq_semaphore;
  int32_t* ticket;
  void* dq;
  int64_t out_row_stride, out_head_stride;
  int64_t dout_row_stride, dout_head_stride;
  int64_t dq_row_stride, dq_head_stride;
  int32_t num_heads_q;
  int32_t num_q_tiles;     ///< of a mask
  int32_t heads_per_mask;  ///< 0: one mask; else see NOTE [tables of masks]
  int32_t num_accum_tiles;
  int32_t head_dim, head_dim_v;
  float softmax_scale;
  bool out_float32;
  GradType dq_type;
  bool accumulate_dq;      ///< adds to dq, which is float32
  bool has_empty_tiles;    ///< of a padded slot: query tiles may be empty, and have no sums
  cudaEvent_t keys_ready;  ///< of the host: null, or what the main kernel waits for
};

}  // namespace tangram::sm80::backward
