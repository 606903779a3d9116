// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Loads and stores of tiles in panels of 64 columns. For exactly the head dimension of its class a tile is one box, of
// all panels. For any other a box is one panel, since no box could leave out the columns behind the last head_dim of a
// row and have those of a whole panel before: coordinates are columns of the tensor, whose extent the map knows.
#pragma once

#include <cstdint>

#include "cuda/ptx/tma.cuh"

namespace tangram::sm90 {

inline constexpr int kPanelColumns = 64;

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
