// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DkvScatterMap: destination of each row of dk and dv. A kernel stores each row where it belongs, also in memory of
// another GPU.
#pragma once

#include <cstdint>

#include "tangram/tensor.hpp"

namespace tangram {

/// A place is a row of one of several tensors: `tensor << kGradientRowBits | row`.
inline constexpr int kGradientRowBits = 25;
inline constexpr uint32_t kOwnTensor = 0;         ///< dk and dv of the call
inline constexpr uint32_t kFinalTensor = 1;       ///< dk_final and dv_final
inline constexpr uint32_t kFirstOtherTensor = 2;  ///< dk_others[0] and dv_others[0], and so on

constexpr uint32_t dkv_scatter_target(uint32_t tensor, int64_t row) {
  return tensor << kGradientRowBits | static_cast<uint32_t>(row);
}

/// All tensors have the heads, dim and strides of dk and dv; dk and dv may then have any number of rows.
struct DkvScatterMap {
  const uint32_t* of_key =
      nullptr;  ///< [seqlen_k] places of both gradients, in device memory; null: row by row in dk, dv
  /// Rows without further contributions, in the prepared dtype or float32; empty if no target names them.
  TensorView dk_final;
  TensorView dv_final;
  /// Where further tensors begin, of the dtype of dk and dv: addresses in device memory, of memory that may be another
  /// device's.
  void* const* dk_others = nullptr;
  void* const* dv_others = nullptr;
};

}  // namespace tangram
