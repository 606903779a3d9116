// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of the kernel, its shared-memory plan and the messages of its threads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attn/sm90/common/fragments.cuh"
#include "attn/sm90/common/panels.cuh"
#include "attn/sm90/common/rings.cuh"
#include "attn/sm90/query_backward/params.hpp"

namespace tangram::sm90::query_backward {

inline constexpr int kConsumerThreads = 256;
inline constexpr int kConsumerWarps = 8;

/// Flags of a step; several may hold.
enum StepKind : int32_t {
  kStepFirst = 1,        ///< of its work tile
  kStepLast = 2,         ///< of its work tile
  kStepOddWorkTile = 4,  ///< the phase of the barriers of its work tile
  kStepStop = 8,         ///< no more work tiles
};

/// Written by the planner before it arrives on planned.
struct alignas(16) StepMessage {
  int32_t kind;   ///< a sum of StepKind
  int32_t count;  ///< groups of keys; 0: a work tile that sees nothing
  int32_t kv_head;
  int32_t head;                 ///< the first of the work tile
  int32_t row_begin, num_rows;  ///< of the work tile
  int32_t masked_from;          ///< groups from here on are masked, or none
  int32_t mask_begin;           ///< that of the first of these in Params::masks
  int32_t groups[kStepGroups];  ///< `count` of GroupList::groups
};
static_assert(sizeof(StepMessage) == 64);

/// The first key of an entry of GroupList::groups.
__device__ __forceinline__ int32_t first_key(int32_t entry) { return entry < 0 ? ~entry : entry; }

template <typename Traits>
struct Smem;

/// Traits for exactly this head_dim of q, k and v.
template <typename ElementT, int kHeadDimT>
struct Traits : PanelSizes<kHeadDimT, kHeadDimT, kRows, kKeys> {
  using Element = ElementT;
  using Params = query_backward::Params;
  using Message = StepMessage;
  using SmemType = Smem<Traits>;
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kPanels = kHeadDim / kPanelColumns;
  static_assert(kPanels == 1 || kPanels == 2);
  static constexpr int kThreads = 128 + kConsumerThreads;
  static constexpr int kProducerRegisters = 24;  // 24 + 2 * 240 = 3 * 168, what the launch gives
  static constexpr int kConsumerRegisters = 240;
  static constexpr int kStagesK = 2;    // K of a step is needed until dQ of it, which comes beside the next step
  static constexpr int kDsBuffers = 2;  // see Smem::ds
  static constexpr int kPanelBytesDs = kKeys * kPanelRowBytes;
  static constexpr int kBytesDs = kRows / kPanelColumns * kPanelBytesDs;
};

template <typename Traits>
struct alignas(1024) Smem {
  alignas(1024) unsigned char q[Traits::kBytesQ];
  alignas(1024) unsigned char dout[Traits::kBytesQ];
  alignas(1024) unsigned char k[Traits::kStagesK][Traits::kBytesK];
  alignas(1024) unsigned char v[Traits::kBytesV];
  // Not at the end: memcheck takes every operand of a matmul for contiguous (docs/design/gpu_backends.md).
  alignas(128) float stats[kStatsFloats];
  alignas(128) uint32_t ones[3][32];  // as backward::Smem::ones
  typename Traits::Message step[Traits::kStagesK];
  uint64_t planned[Traits::kStagesK];
  uint64_t q_full, dout_full, work_tile_empty;
  uint64_t k_full[Traits::kStagesK], k_empty[Traits::kStagesK];
  uint64_t v_full, v_empty;
  uint64_t ds_full[Traits::kDsBuffers];
  GroupWorkTile work_tile;  // the planner's own
  // dS, keys by rows, 64 rows a panel: each warpgroup writes its keys, and reads all for dQ of its rows. Before a
  // warpgroup writes the buffer of step i, it has seen step i - 1 complete. The other warpgroup wrote that after its dQ
  // of step i - 2 was done, so two buffers need no other wait.
  alignas(1024) unsigned char ds[Traits::kDsBuffers][Traits::kBytesDs];
};

}  // namespace tangram::sm90::query_backward
