// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskCapacity: the largest masks that a MaskBuffer has room for.
#pragma once

#include <cstdint>

#include "tangram/attn_pass.hpp"

namespace tangram {

/// Largest masks of one shape, and the calls that they are for.
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
  /// is not used. Calls use the kernels that gather small blocks, of head dims 64 and 128. A block must be a multiple
  /// of 128 / p, p being the largest power of two in the query heads of a K/V head. 16 must divide the block and the
  /// keys. Calls are not deterministic, and backward calls have neither softcap nor gradients of sinks. Multiples of
  /// 128 are not gathered forward, nor backward if there are many key tiles. Without head_groups they use the kernels
  /// of other masks, at any head dims and without these limits.
  int64_t block_size = 0;
  /// Number of equal head groups with blocks of their own, with block_size alone; divides the K/V heads.
  int head_groups = 1;

  friend bool operator==(const MaskCapacity&, const MaskCapacity&) = default;
};

}  // namespace tangram
