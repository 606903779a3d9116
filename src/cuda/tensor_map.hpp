// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// TMA descriptors of token tensors. Found through the runtime, so that nothing links libcuda.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tangram/tensor.hpp"

namespace tangram::cuda {

/// A box of a token tensor `[rows, heads, dim]` in shared memory. It has `panels` panels of 128-byte rows with 128-byte
/// swizzle (src/cuda/ptx/wgmma.cuh), in each of which `heads` is inside `rows`.
struct TokenBox {
  uint32_t rows = 0;
  uint32_t heads = 1;
  uint32_t panels = 0;  ///< kAnyColumn: one, which may begin at any column
};
inline constexpr uint32_t kAnyColumn = 0;

/// Coordinates of the map with `heads_first`: (column in panel, head, row, panel). Otherwise, for boxes of one head:
/// (column in panel, row, panel, head). With kAnyColumn the first is the column of the tensor, and the panel 0. Rows
/// and columns past the end read as zeros and are not written; without kAnyColumn `view.dim` is whole panels. `view`
/// must be 16-byte aligned with strides that are multiples of 16 bytes (the caller has checked). Throws CudaError when
/// the driver refuses.
CUtensorMap make_token_map(const ConstTensorView& view, const TokenBox& box, bool heads_first);

}  // namespace tangram::cuda
