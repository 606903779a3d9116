// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A MaskBuffer's shape and operands for tests over the counting runtime.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/sm90/counted_calls.hpp"
#include "tangram/mask_buffer.hpp"

namespace tangram::counted {

inline constexpr AttnShape kShape{kRows, kRows, 16, 2, 128, 128, DType::kBFloat16};

/// Operands and a workspace.
struct BufferOperands : Operands {
  std::vector<char> space;

  AttnBackwardArgs backward(const MaskBuffer& buffer) {
    AttnBackwardArgs args = Operands::backward();
    args.options.deterministic = buffer.capacity().deterministic;
    space.resize(static_cast<size_t>(buffer.backward_workspace_bytes()) + 256);
    args.workspace = {space.data() + (256 - reinterpret_cast<uintptr_t>(space.data()) % 256),
                      buffer.backward_workspace_bytes()};
    return args;
  }
  void step(MaskBuffer& buffer) {
    buffer.forward(forward());
    buffer.backward(backward(buffer));
  }
};

}  // namespace tangram::counted
