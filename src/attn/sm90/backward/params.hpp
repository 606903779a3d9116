// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of the backward kernels, as plain data that host and device agree on.
#pragma once

#include <cstdint>

#include "attn/sm90/arrivals.hpp"
#include "attn/sm90/key_stretches.hpp"
#include "tangram/gradient_places.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm90::backward {

/// An opaque CUtensorMap: 128 bytes, aligned to 64.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

enum class GradType : int32_t { kInput = 0, kFloat32 = 1 };

inline constexpr int32_t kItemZeroRows = 1;  ///< some rows of the key tile are nobody's: zero them (see `covered`)
inline constexpr int32_t kItemOddPhase = 2;  ///< set by the kernel: phase of the barriers of K and V

/// The query rows [row_begin, row_end) of a tile, at most kBlockM; the tiles cover all rows in order.
struct QueryTile {
  int32_t row_begin = 0;
  int32_t row_end = 0;
};

/// The query tiles [first, end) of a run, and where `turn_segments` says its turns in deterministic calls.
struct RunTiles {
  int32_t first = 0;
  int32_t end = 0;
  int32_t segment = 0;
};

/// One unit of work: the keys [row_begin, row_end) of one KV head against the query heads [head_begin, head_end) and
/// the runs of queries [run_begin, run_end). Runs are TileRuns of the transposed mask: what they call rows are keys
/// here, and what they call keys are queries.
struct alignas(16) Item {
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t run_begin = 0;
  int32_t run_end = 0;
  int32_t kv_head = 0;
  int32_t head_begin = 0;
  int32_t head_end = 0;
  int32_t num_steps = 0;  ///< (query head, query tile) pairs of this item
  int32_t piece = 0;      ///< of num_pieces items with the same keys and KV head, dealt in the order of their pieces;
                          ///< the kernel changes it to their order of ending, unless calls are deterministic
  int32_t num_pieces = 1;
  int32_t slab = 0;  ///< where the pieces add up
  int32_t flags = 0;
  uint32_t covered[4] = {};  ///< bit i: row row_begin + i is seen by some query
};
static_assert(sizeof(Item) == 64);

/// In Params::piece_turns, see Producer::draw_place.
inline constexpr int32_t kPieceArrived = 1 << 16;

/// Deterministic calls: in the order of the walk, the query tiles of a run from `first_tile` up to the next segment's
/// are this run's to add to as number `turn`. The last segment of a run is followed by one of kNoTile.
struct TurnSegment {
  int32_t first_tile = 0;
  int32_t turn = 0;

  friend bool operator==(const TurnSegment&, const TurnSegment&) = default;
};
inline constexpr int32_t kNoTile = -1;

/// The order of an item's steps.
struct Walk {
  bool descending = false;    ///< last run and last query tile first
  bool heads_inside = false;  ///< all query heads of a query tile, then the next tile; else all tiles of a head first
};

/// Strides are in elements.
struct Params {
  TensorMap q_map;
  TensorMap k_map;
  TensorMap v_map;
  TensorMap dout_map;
  TensorMap k_elsewhere_map;  ///< of the tensors that `stretches` speak of
  TensorMap v_elsewhere_map;
  const Item* items;
  const TileRun* runs;
  const RunTiles* run_tiles;  ///< of each run
  const QueryTile* q_tiles;   ///< [num_q_tiles]
  const RowInterval* intervals;
  const float* stats;                ///< [num_heads_q, num_q_tiles, kStatsFloats]
  float* dq_sums;                    ///< [num_heads_q, num_q_tiles, kBlockM * head_dim] in fragment order
  const uint64_t* covered_queries;   ///< null, or a bit for each of kBlockM rows from the first of every query tile: 0
                                     ///< where no key sees it
  float* slabs;                      ///< [num_slabs, 2 * kBlockN * head_dim], where items in pieces add up
  int32_t* piece_turns;              ///< [num_slabs], zeros before: how many pieces were added, and kPieceArrived for
                                     ///< each that has drawn its place
  int32_t* ticket;                   ///< zero before
  const TurnSegment* turn_segments;  ///< deterministic: see RunTiles
  int32_t* turns;  ///< [num_heads_q, num_q_tiles, 2], zeros before: what was added to each half of a slab (DqWriter)
  void* dk;
  void* dv;
  const uint32_t* places;  ///< null, or [seqlen_k]: as GradientPlaces::of_key
  void* dk_settled;        ///< kSettledTensor of the places
  void* dv_settled;
  void* const* dk_others;  ///< from kFirstOtherTensor on
  void* const* dv_others;
  int64_t dk_row_stride, dk_head_stride;
  int64_t dv_row_stride, dv_head_stride;
  int32_t num_items;
  int32_t num_q_tiles;
  float softmax_scale;
  float scale_log2;  ///< softmax_scale * log2(e)
  float cap_inner;   ///< with softcap: softmax_scale / softcap, and softcap * log2(e)
  float cap_outer;
  GradType dkv_type;
  GradType settled_type;
  bool accumulate_dkv;  ///< adds to dk and dv, which are float32
  ArrivalParams arrivals;
  StretchParams stretches;
  Walk walk;
  bool zeroed_sums;  ///< dq_sums are zeros before; else the first addition stores, and `turns` says whether there was
                     ///< one
};

/// The kernels before and after: stats and zeroed sums from out, dout and lse; dq from the sums.
struct EdgeParams {
  const QueryTile* q_tiles;  ///< as in Params
  const void* out;
  const void* dout;
  const float* lse;  ///< [seqlen_q, num_heads_q]
  float* stats;
  float* dq_sums;
  int32_t* ticket;
  int32_t* turns;                   ///< as in Params, zeros afterwards
  int32_t* piece_turns;             ///< likewise
  const uint64_t* covered_queries;  ///< as in Params
  void* dq;
  int64_t out_row_stride, out_head_stride;
  int64_t dout_row_stride, dout_head_stride;
  int64_t dq_row_stride, dq_head_stride;
  int32_t num_heads_q;
  int32_t num_q_tiles;
  int32_t num_slabs;  ///< of piece_turns
  float softmax_scale;
  float lse_factor;  ///< -1 / softmax_scale, to be added to q.k; with softcap -log2(e)
  bool out_float32;
  GradType dq_type;
  bool accumulate_dq;  ///< adds to dq, which is float32
  bool zeroed_sums;    ///< as in Params
};

}  // namespace tangram::sm90::backward
