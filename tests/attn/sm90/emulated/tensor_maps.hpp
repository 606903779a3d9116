// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What cuda::make_token_map makes of host tensors, for the emulator.
#pragma once

#include <cstring>

#include "attn/sm90/common/tensor_map.hpp"
#include "attn/sm90/emulated/device.hpp"
#include "tangram/tensor.hpp"

namespace tangram::emulated {

inline sm90::TensorMap opaque(const TensorMap& map) {
  sm90::TensorMap result{};
  std::memcpy(&result, &map, sizeof(map));
  return result;
}

/// Whether boxes are all panels of a row (kernels for exactly this dimension), or one panel from any column on.
enum class Columns { kPanels, kAny };

/// Boxes of (column, head, row, panel); `panels` is that of a box, with Columns::kAny 1.
inline sm90::TensorMap heads_first_map(const TensorView& view, int rows, int heads, int panels, Columns columns) {
  const bool any = columns == Columns::kAny;
  return opaque(
      {static_cast<uint16_t*>(view.data),
       {any ? view.dim : 64, view.heads, view.rows, any ? 1 : view.dim / 64},
       {1, view.head_stride, view.row_stride, 64},
       {64, static_cast<uint32_t>(heads), static_cast<uint32_t>(rows), any ? 1 : static_cast<uint32_t>(panels)}});
}

/// Boxes of one head, of (column, row, panel, head); `box_panels`: not all panels.
inline sm90::TensorMap rows_first_map(const TensorView& view, int rows, Columns columns, int box_panels = 0) {
  const bool any = columns == Columns::kAny;
  const int panels = any ? 1 : view.dim / 64;
  return opaque({static_cast<uint16_t*>(view.data),
                 {any ? view.dim : 64, view.rows, panels, view.heads},
                 {1, view.row_stride, 64, view.head_stride},
                 {64, static_cast<uint32_t>(rows), static_cast<uint32_t>(box_panels > 0 ? box_panels : panels), 1}});
}

}  // namespace tangram::emulated
