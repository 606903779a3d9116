// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskCapacity: the largest masks that a MaskBuffer has room for.
#pragma once

#include <cstdint>

#include "tangram/attn_pass.hpp"

namespace tangram {

/// What masks of one shape may need, and which calls they are for.
struct MaskCapacity {
  /// Documents: ranges of rows that see none of each other's keys. Each may take one more tile of 64 queries in the
  /// backward pass, and that is what a call's workspace grows with.
  int64_t max_documents = 64;
  /// Slices of a mask; 0: as many as max_documents. Lists have room for two runs of keys a tile, and besides for those
  /// of as many slices of up to 128 rows and keys.
  int64_t max_slices = 0;
  /// Lists are those of deterministic calls, or of others; never both.
  bool deterministic = false;
  AttnPasses passes = AttnPasses::kBoth;
  /// Whether masks may contain fully masked query rows. If not, backward kernels skip a table lookup. Not with
  /// block_size, nor for masks that a GPU has computed.
  bool allow_fully_masked_rows = true;
  /// Above 0: masks are blocks of so many rows and keys or of a multiple, at most `max_slices` of them; `max_documents`
  /// is not used. Calls take the kernels that gather small blocks, of head dims 64 and 128: tiles of 128 divided by the
  /// query heads that share them (the largest power of two in the query heads of a K/V head) must divide a block, and
  /// 16 the block and the keys; calls are not deterministic, without softcap or gradients of sinks backward. Multiples
  /// of 128 are not gathered forward, nor backward where there are many tiles of keys; without head_groups the kernels
  /// of other masks take them, at any head dims, and can do all this.
  int64_t block_size = 0;
  /// With block_size: so many equal groups of heads have blocks of their own; divides the K/V heads.
  int head_groups = 1;

  friend bool operator==(const MaskCapacity&, const MaskCapacity&) = default;
};

}  // namespace tangram
