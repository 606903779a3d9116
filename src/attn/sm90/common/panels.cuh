// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Tiles in shared memory lie in panels of 64 columns, with 128-byte rows and 128-byte swizzle. For exactly the head
// dimension of its class a tile is one box, of all panels. For any other head_dim a box is one panel. A box of several
// panels could not both end at head_dim and fill a whole panel before. Coordinates are columns of the tensor, whose
// extent the map knows.
#pragma once

#include <cstdint>

#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace tangram::sm90 {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kSwizzleBytes = 8 * kPanelRowBytes;  // the swizzle repeats after 8 rows
inline constexpr int kRows16Bytes = 16 * kPanelRowBytes;

/// Panel sizes of tiles of kRowsQ rows of Q and kRowsK rows of K and V.
template <int kDimQk, int kDimV, int kRowsQ, int kRowsK>
struct PanelSizes {
  static constexpr int kPanelsQk = (kDimQk + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kPanelsV = (kDimV + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kPanelBytesQ = kRowsQ * kPanelRowBytes;
  static constexpr int kPanelBytesK = kRowsK * kPanelRowBytes;
  static constexpr int kBytesQ = kPanelsQk * kPanelBytesQ;
  static constexpr int kBytesK = kPanelsQk * kPanelBytesK;
  static constexpr int kBytesV = kPanelsV * kPanelBytesK;
};

/// The operand of a product over the columns of a tile, from `address` on; its 16 columns k16 begin
/// k16_offset<kPanelBytes>(k16) bytes further.
__device__ __forceinline__ uint64_t k_major_operand(uint32_t address) {
  return ptx::wgmma_descriptor(address, 16, kSwizzleBytes);
}
template <int kPanelBytes>
__device__ __forceinline__ constexpr uint32_t k16_offset(int k16) {
  return k16 / 4 * kPanelBytes + k16 % 4 * 32;
}

/// Operand of a product over the rows of a tile; 16 rows begin kRows16Bytes after the 16 before. Several panels of
/// columns must be `panel_bytes` apart.
__device__ __forceinline__ uint64_t mn_major_operand(uint32_t address, uint32_t panel_bytes = 16) {
  return ptx::wgmma_descriptor(address, panel_bytes, kSwizzleBytes);
}

/// A tile of rows of one head: coordinates (column, row, panel, head).
template <bool kAnyDim, int kPanels, int kPanelBytes>
__device__ __forceinline__ void load_rows(unsigned char* to, const void* map, uint64_t* barrier, int32_t row,
                                          int32_t head) {
  if constexpr (kAnyDim) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::tma_load_4d(to + panel * kPanelBytes, map, barrier, panel * kPanelColumns, row, 0, head);
    }
  } else {
    ptx::tma_load_4d(to, map, barrier, 0, row, 0, head);
  }
}

/// A tile of packed rows: coordinates (column, head, row, panel).
template <bool kAnyDim, int kPanels, int kPanelBytes>
__device__ __forceinline__ void load_packed_rows(unsigned char* to, const void* map, uint64_t* barrier, int32_t head,
                                                 int32_t row) {
  if constexpr (kAnyDim) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::tma_load_4d(to + panel * kPanelBytes, map, barrier, panel * kPanelColumns, head, row, 0);
    }
  } else {
    ptx::tma_load_4d(to, map, barrier, 0, head, row, 0);
  }
}

}  // namespace tangram::sm90
