// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a backward call computes in, and how it lies in its workspace.
#pragma once

#include <cstddef>

#include "attn/sm90/backward/params.hpp"
#include "cuda/scratch_layout.hpp"
#include "tangram/attn_shape.hpp"

namespace tangram::sm90::backward {

/// For so many query tiles, and slabs for items in pieces.
struct CallLayout {
  size_t tiles = 0;
  size_t slabs = 0;
  int num_heads_q = 0;
  int head_dim = 0;

  /// Fills in the pointers into a workspace of any content; returns its size. Without one they become null.
  size_t place(Params& params, EdgeParams& edge, void* workspace) const {
    const size_t all_tiles = tiles * static_cast<size_t>(num_heads_q);
    const auto dim = static_cast<size_t>(head_dim);
    constexpr auto kQueries = static_cast<size_t>(kTileShape.block_n), kKeys = static_cast<size_t>(kTileShape.block_m);
    cuda::ScratchLayout layout(workspace);
    params.stats = edge.stats = layout.take<float>(all_tiles * kQueries * 4);
    params.dq_sums = edge.dq_sums = layout.take<float>(all_tiles * kQueries * dim);
    params.slabs = layout.take<float>(slabs * 2 * kKeys * dim);
    params.turns = edge.turns = layout.take<int32_t>(all_tiles * 2);
    params.piece_turns = edge.piece_turns = layout.take<int32_t>(slabs);
    params.ticket = edge.ticket = layout.take<int32_t>(1);
    return layout.bytes();
  }
  size_t bytes() const {
    Params params{};
    EdgeParams edge{};
    return place(params, edge, nullptr);
  }
};

}  // namespace tangram::sm90::backward
