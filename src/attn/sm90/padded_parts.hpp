// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What padded slots share.
#pragma once

#include "core/require.hpp"
#include "tangram/attn_pass.hpp"
#include "tangram/mask_capacity.hpp"
#include "tangram/mask_slot.hpp"

namespace tangram::sm90 {

/// Those that there is room for.
inline MaskParts parts_of(const MaskCapacity& capacity) {
  const MaskParts backward = capacity.deterministic ? MaskPart::kBackwardOrdered : MaskPart::kBackward;
  switch (capacity.passes) {
    case AttnPasses::kForward: return MaskPart::kForward;
    case AttnPasses::kBackward: return backward;
    case AttnPasses::kBoth: return MaskPart::kForward | backward;
  }
  return {};
}

/// Throws InvalidArgument, naming `function`, for a slot without a mask, or for the `other` pass alone.
inline void check_installed(const char* function, bool is_set, const MaskCapacity& capacity, AttnPasses other) {
  require(capacity.passes != other, "{}: the MaskBuffer must be for this pass (got one for {} alone)", function,
          other == AttnPasses::kForward ? "forward" : "backward");
  require(is_set, "{}: MaskBuffer::set() must come first (got none)", function);
}

}  // namespace tangram::sm90
