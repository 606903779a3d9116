// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskCapacity: the largest masks that a MaskBuffer has room for.
#pragma once

#include <cstdint>

#include "tangram/attn_pass.hpp"

namespace tangram {

/// What masks of one shape may need, and which calls they are for.
struct MaskCapacity {
  /// Documents: stretches of rows that see none of each other's keys. Each may take one more tile of 64 queries in the
  /// backward pass, and that is what a call's workspace grows with.
  int64_t documents = 64;
  /// Slices of a mask; 0: as many as documents. Lists have room for two runs of keys a tile, and besides for those of
  /// as many slices of up to 128 rows and keys.
  int64_t slices = 0;
  /// Lists are those of deterministic calls, or of others; never both.
  bool deterministic = false;
  AttnPasses passes = AttnPasses::kBoth;

  friend bool operator==(const MaskCapacity&, const MaskCapacity&) = default;
};

}  // namespace tangram
