// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What the service threads of the forward kernel tell each other and the consumers, in shared memory.
#pragma once

#include <cstdint>

#include "attn/sm90/common/run_rows.cuh"
#include "tangram/tile_list.hpp"

namespace tangram::sm90 {

/// Message to the consumers about one K tile ("step"); written by the producer before it arrives on k_full.
struct alignas(16) StepMessage {
  uint32_t word[3];   ///< one for each warpgroup: its window, StepKind, the groups of keys to be masked
  int32_t k0;         ///< key of row 0 of the tile
  int32_t v_valid;    ///< with kStepTail: rows of the V tile from here on are unused and must not enter a product
  int32_t first_key;  ///< keys before it belong to the step before
  int32_t interval_begin;
  int32_t row_begin, row_end, slice_begin, slice_end;  // of the run, see run_rows.cuh
  int32_t min_diag, max_diag, reserved[3];
};
static_assert(sizeof(StepMessage) == 64);

/// The rows of a work tile; written by the producer before it arrives on q_full.
template <bool kSplitKv>
struct alignas(16) WorkTileRows {
  int32_t row0, num_rows;
  int32_t group;  ///< head group
};
template <>
struct alignas(16) WorkTileRows<true> {
  int32_t row0, num_rows;
  int32_t group;
  int32_t part_row;  ///< where the rows go in the workspace
};

/// Flags of a step for a warpgroup; several may hold. With nothing but kStepSteady, the window a whole tile and no
/// group to be masked it is a plain step (ConsumerSteps).
enum StepKind : uint32_t {
  kStepNone = 0,
  kStepSteady = 1u << 16,  ///< every row of the warpgroup sees some key of the window
  kStepFirst = 1u << 17,   ///< first step of a work tile: Q is needed
  kStepNewRun = 1u << 19,  ///< the row intervals have changed since they were read
  kStepTail = 1u << 20,    ///< v_valid counts
  kStepStop = 1u << 21,    ///< no more work tiles
};

// A step word. Bits 0-7 and 8-15: the window of the tile on which the warpgroup works, rows [16 * begin16, 16 *
// (begin16 + count16)); count16 == 0: it sees nothing. Then StepKind. Bits 24-31: the groups of 16 keys in which row
// intervals mask something.
inline constexpr int kStepMaskShift = 24;
__device__ __forceinline__ uint32_t pack_window(int begin16, int count16) {
  return static_cast<uint32_t>(begin16) | (static_cast<uint32_t>(count16) << 8);
}
__device__ __forceinline__ int window_begin16(uint32_t word) { return static_cast<int>(word & 0xff); }
__device__ __forceinline__ int window_count16(uint32_t word) { return static_cast<int>(word >> 8 & 0xff); }

/// One unit of work on its way from the scheduler warp to the producer warp.
struct alignas(16) WorkMessage {
  MaskTile work_tile;
  int32_t group;
  int32_t stop;
  int32_t part_row;  ///< with kSplitKv: where its rows go in the workspace
  int32_t reserved;
  TileRange first_run;
};
static_assert(sizeof(WorkMessage) == 80);

/// Keys of a run that the query rows of one warpgroup see: something of [see_begin, see_end), all of [full_begin,
/// full_end).
struct alignas(16) SeenKeys {
  int32_t see_begin, see_end, full_begin, full_end;
};

}  // namespace tangram::sm90
