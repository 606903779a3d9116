// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of a backward kernel, its shared-memory plan and the messages from producer to consumers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/common/fragments.cuh"
#include "attn/sm90/common/local_kv_ranges.cuh"
#include "attn/sm90/common/panels.cuh"
#include "attn/sm90/common/ready_flags.cuh"
#include "attn/sm90/common/rings.cuh"
#include "attn/sm90/common/run_rows.cuh"
#include "attn/sm90/common/shapes.hpp"
#include "cuda/ptx/convert.cuh"

namespace tangram::sm90::backward {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr int kBlockM = 64;   // queries of a step
inline constexpr int kBlockN = 128;  // keys of a work tile, 64 for each of two consumer warpgroups
inline constexpr int kConsumerThreads = 256;
inline constexpr int kConsumerWarps = 8;

/// Flags of a step in its message to the consumers; several may hold.
enum StepKind : int32_t {
  kStepPlain = 0,     ///< all of the tile is visible, or no query sees the work tile (WorkTile::num_steps)
  kStepStop = 1,      ///< no more work tiles
  kStepMasked = 2,    ///< some (key, query) pair of the tile is not visible
  kStepZeroRows = 4,  ///< some query rows of the tile belong to no query
  kStepAbsent = 8,    ///< with pairs: a work tile of an odd number of steps has no second one here
};

/// Row statistics of a query tile, which the tensor cores add to S and dP as further columns of the reduction. Each row
/// has eight bfloat16. They are a multiple of lse (PrePostParams::lse_factor) and -delta, each as a sum of three (24
/// bits) followed by a zero.
inline constexpr int kStatsFloats = kBlockM * 4;

/// Message to the consumers about one query tile ("step"); written by the producer before it arrives on q_full.
struct alignas(16) StepMessage {
  int32_t kind;  ///< a sum of StepKind
  int32_t work_tile_slot;
  int32_t q0;  ///< query of row 0 of the tile
  uint32_t covered[2];
  // Masked steps only, see run_rows.cuh; rows are keys.
  int32_t row_begin, row_end, slice_begin, slice_end;
  int32_t min_diag, max_diag, interval_begin;
  int32_t q_end;  ///< rows from here on are another tile's
  int32_t reserved[3];
};
static_assert(sizeof(StepMessage) == 64);

/// Where dq of a step goes; written by the producer before it arrives on q_full.
struct DqTarget {
  int32_t accum_tile;  ///< query head * num_q_tiles + query tile, or one of the following
  int32_t segment;     ///< deterministic: where Params::dq_order_segments has the turn
};
inline constexpr int32_t kDqNothing = -1;
inline constexpr int32_t kDqStop = -2;

/// Whether two kernels share the work (LargeTraits).
template <int kDimQk, int kDimV>
inline constexpr bool kIsSplit = shape_class(kDimQk, kDimV).backward_split;

/// Columns of dq of a step that each warpgroup computes, in groups of 8, and their place in an accumulator tile.
/// Warpgroup 0 comes first, then warpgroup 1; in each, 16 rows a warp, and of these one column group after the other.
/// Halves where wgmma can start in the middle: inside a panel of 64 columns, or at its end.
template <int kDimQk, bool kInPieces = (kDimQk > 128)>
struct DqLayout {
  static constexpr int kGroups = kDimQk / 8;
  static constexpr int kGroups0 = kDimQk == 96 ? 8 : kGroups / 2;  // of warpgroup 0
  static constexpr bool kEven = kGroups == 2 * kGroups0;
  static constexpr int kGroupFloats = 8 * 16;  // of a warp
  static __host__ __device__ constexpr int num_groups(int side) { return side == 0 ? kGroups0 : kGroups - kGroups0; }
  static __host__ __device__ constexpr int side_floats(int side) { return num_groups(side) * 4 * kGroupFloats; }
  static __host__ __device__ constexpr int side_begin(int side) { return side == 0 ? 0 : side_floats(0); }
  static __host__ __device__ constexpr int side_of(int group) { return group < kGroups0 ? 0 : 1; }
  /// Place of a column group in the accumulator-tile part of `warp` of its warpgroup.
  static __host__ __device__ constexpr int place(int group, int warp) {
    const int side = side_of(group), in_side = side == 0 ? group : group - kGroups0;
    return side_begin(side) + (warp * num_groups(side) + in_side) * kGroupFloats;
  }
};

/// Layout if dq of a step is handed over in pieces of 32 columns (LargeTraits): piece by piece, 16 rows a warp. A
/// warpgroup has half of the pieces: kLead columns from the first of a panel on, and the rest from the shared middle
/// panel.
template <int kDimQk>
struct DqLayout<kDimQk, true> {
  static constexpr int kGroups = kDimQk / 8;
  static constexpr int kGroups0 = kGroups / 2;
  static constexpr bool kEven = true;
  static constexpr int kPieces = kDimQk / 64;  // of a warpgroup
  static constexpr int kLead = 64;
  static constexpr int kRest = kDimQk / 2 - kLead;
  static constexpr int kPieceFloats = 32 * kBlockM;
  static __host__ __device__ constexpr int side_of(int group) { return group < kGroups / 2 ? 0 : 1; }
  static __host__ __device__ constexpr int place(int group, int warp) {
    return group / 4 * kPieceFloats + warp * (kPieceFloats / 4) + group % 4 * (8 * 16);
  }
  /// First column of a warpgroup's `piece`th piece; the lead is first, wherever its columns are.
  static __device__ __forceinline__ uint32_t column_piece(uint32_t warpgroup, uint32_t head_split) {
    constexpr uint32_t kLeadPieces = kLead / 32;
    if (warpgroup == 0) return head_split;
    constexpr uint32_t kFirst = kPieces;  // of this warpgroup
    if constexpr (kRest == 32) return head_split < kLeadPieces ? kFirst + 1 + head_split : kFirst;
    return head_split < kLeadPieces ? kFirst + kLeadPieces + head_split : kFirst + head_split - kLeadPieces;
  }
};

/// Configuration of the kernels. With kAnyDim head dims may be smaller than those of the class, as in the forward
/// kernel.
template <typename ElementT, int kDimQkT, int kDimVT, bool kSoftcapT, bool kDeterministicT, bool kTurnsT, bool kAnyDimT>
struct Config : PanelSizes<kDimQkT, kDimVT, kBlockM, kBlockN> {
  using Panels = PanelSizes<kDimQkT, kDimVT, kBlockM, kBlockN>;
  using Element = ElementT;
  static constexpr int kDimQk = kDimQkT;
  static constexpr int kDimV = kDimVT;
  static constexpr int kHeadDim = kDimQk;  // where both are the same
  static constexpr bool kAnyDim = kAnyDimT;
  static constexpr bool kSoftcap = kSoftcapT;
  static constexpr ShapeClass kShape = shape_class(kDimQk, kDimV);
  // Steps that consumers take at once (PairConsumer); what they hand over belongs to all of these.
  static constexpr int kAtOnce = kSoftcap ? 1 : kShape.backward_at_once;
  // Powers of two: stage, buffer and phases follow from the number of the step.
  static constexpr int kStages = 2 * kAtOnce;
  static constexpr int kDsBuffers = kAtOnce == 2 ? 2 : 4;
  // dq of a step leaves two rounds after it, when the producer may be four ahead.
  static constexpr int kDqTargets = 8 * kAtOnce;
  static constexpr bool kDeterministic = kDeterministicT;
  static constexpr bool kTurns = kTurnsT;
  static constexpr int kThreads = 128 + kConsumerThreads;
  static constexpr int kProducerRegisters = 24;  // 24 + 2 * 240 = 3 * 168, what the launch gives
  static constexpr int kConsumerRegisters = 240;
  static constexpr int kBytesDout = Panels::kPanelsV * Panels::kPanelBytesQ;
  static constexpr int kBytesDs = kBlockN * kBlockM * 2;  // of a step
  using Dq = DqLayout<kDimQk>;
  static constexpr int kAccumTileFloats = kBlockM * kDimQk;                       // of dq
  static constexpr int kWarpAccumTileFloats = kAccumTileFloats / kConsumerWarps;  // where Dq::kEven
  static constexpr bool kMakesDk = true;
  static constexpr bool kMakesDv = true;
  static constexpr bool kSingleStageDout = false;  // see LargeTraits
  static constexpr int kStatsBytes = kStatsFloats * 4;
  static constexpr int kWorkTileSlots = 4;  // the producer is at most three ahead: each takes half of the stages
  static_assert(kShape.backward_at_once > 0);
};

/// Traits for exactly this head_dim of q, k and v.
template <typename ElementT, int kHeadDimT, bool kSoftcapT, bool kDeterministicT, bool kTurnsT = true>
struct Traits : Config<ElementT, kHeadDimT, kHeadDimT, kSoftcapT, kDeterministicT, kTurnsT, false> {};

/// Traits for any head dims of the class.
template <typename ElementT, int kDimQkT, int kDimVT, bool kSoftcapT, bool kDeterministicT>
struct AnyDimTraits : Config<ElementT, kDimQkT, kDimVT, kSoftcapT, kDeterministicT, true, true> {};

template <int kAtOnce>
struct PairBarriers {};
template <>
struct PairBarriers<2> {
  uint64_t ds_empty[2];
};

template <typename Traits, bool kLarge = Traits::kShape.backward_large>
struct alignas(1024) Smem {
  alignas(1024) unsigned char k[Traits::kBytesK];
  alignas(1024) unsigned char v[Traits::kBytesV];
  alignas(1024) unsigned char q[Traits::kStages][Traits::kBytesQ];
  alignas(1024) unsigned char dout[Traits::kStages][Traits::kBytesDout];
  // dS, keys by queries: written by both warpgroups, read by both for dQ a step later. Before a warpgroup writes that
  // of step i, it has seen that of step i - 1 complete, which the other wrote after its dQ of step i - 3 was done: with
  // three buffers nothing else must be waited for. Pairs of steps have room for two only, and PairBarriers.
  alignas(1024) unsigned char ds[Traits::kDsBuffers][Traits::kAtOnce * Traits::kBytesDs];
  // Operand of the keys for the queries' terms. Eight equal rows have eight columns each, for lse, for delta, and zeros
  // for the other eight columns of both.
  alignas(128) uint32_t ones[3][32];
  // Not near the end of shared memory: a matmul reads 1 KB twice here, as the other eight columns. memcheck takes every
  // operand for contiguous, and would report the 1 KB behind the last stage (docs/design/gpu_backends.md).
  alignas(128) float stats[Traits::kStages][kStatsFloats];
  alignas(128) float dq[Traits::kAtOnce * Traits::kAccumTileFloats];
  StepMessage step[Traits::kStages];
  WorkTile work_tile[Traits::kWorkTileSlots];
  ArrivedKeys arrived;
  uint64_t q_full[Traits::kStages], dout_full[Traits::kStages], step_empty[Traits::kStages];
  uint64_t ds_full[Traits::kDsBuffers];
  uint64_t k_full, v_full, kv_empty;
  uint64_t dq_full[2], dq_empty[2];  // between a warpgroup and its DqWriter
  DqTarget dq_target[Traits::kDqTargets];
  int32_t segment;       // deterministic: of the producer's current run and tile
  int32_t local_kv_row;  // of the producer's current work tile, see local_kv_ranges.cuh
  BackwardMaskInfo mask_info;
  [[no_unique_address]] PairBarriers<Traits::kAtOnce> pairs;
};

__device__ __forceinline__ BackwardMaskInfo mask_info_of(const Params& params) {
  return params.mask_info != nullptr ? *params.mask_info
                                     : BackwardMaskInfo{params.num_work_tiles, params.walk, params.zeroed_sums};
}

/// Where a consumer is: the number of its step, in all work tiles. Uniform in a warp, and known to be, so that
/// descriptors are computed in uniform registers.
template <typename Traits>
struct Cursor {
  uint32_t step = 0;
  __device__ __forceinline__ uint32_t stage() const { return step % Traits::kStages; }
  __device__ __forceinline__ uint32_t stage_phase() const { return step / Traits::kStages % 2; }
  __device__ __forceinline__ uint32_t buffer() const { return step % Traits::kDsBuffers; }
  __device__ __forceinline__ uint32_t buffer_phase() const { return step / Traits::kDsBuffers % 2; }
  __device__ __forceinline__ void advance() { step = __shfl_sync(0xffffffff, step + 1, 0); }
  __device__ __forceinline__ Cursor previous() const { return {step - 1}; }
};

/// x as the sum of three bfloat16, to 24 bits: two in the first word, the third in the second.
__device__ __forceinline__ uint2 split_in_three(float x) {
  const float first = __uint_as_float(__float_as_uint(x) & 0xffff0000u);
  const float second = __uint_as_float(__float_as_uint(x - first) & 0xffff0000u);
  const float third = x - first - second;
  uint2 words;
  words.x = __float_as_uint(first) >> 16 | (__float_as_uint(second) & 0xffff0000u);
  words.y = ptx::pack_pair<__nv_bfloat16>(third, 0.0f);
  return words;
}

__device__ __forceinline__ float sum_of_three(const uint2& words) {
  return __uint_as_float(words.x << 16) + (__uint_as_float(words.x & 0xffff0000u) + __uint_as_float(words.y << 16));
}

/// The two 16-bit elements of a word as float32.
template <typename Element>
__device__ __forceinline__ float2 unpack_pair(uint32_t packed) {
  if constexpr (__is_same(Element, __nv_bfloat16)) {
    return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&packed));
  }
}

}  // namespace tangram::sm90::backward
