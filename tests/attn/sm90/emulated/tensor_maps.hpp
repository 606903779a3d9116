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

/// Boxes of (column in panel, head, row, panel).
inline sm90::TensorMap heads_first_map(HostTensor& tensor, int rows, int heads, int panels) {
  const TensorView view = tensor.view();
  return opaque({static_cast<uint16_t*>(view.data),
                 {64, view.heads, view.rows, view.dim / 64},
                 {1, view.head_stride, view.row_stride, 64},
                 {64, static_cast<uint32_t>(heads), static_cast<uint32_t>(rows), static_cast<uint32_t>(panels)}});
}

/// Boxes of one head, of (column in panel, row, panel, head); of all panels unless said.
inline sm90::TensorMap rows_first_map(HostTensor& tensor, int rows, int panels = 0) {
  const TensorView view = tensor.view();
  if (panels == 0) panels = view.dim / 64;
  return opaque({static_cast<uint16_t*>(view.data),
                 {64, view.rows, view.dim / 64, view.heads},
                 {1, view.row_stride, 64, view.head_stride},
                 {64, static_cast<uint32_t>(rows), static_cast<uint32_t>(panels), 1}});
}

}  // namespace tangram::emulated
