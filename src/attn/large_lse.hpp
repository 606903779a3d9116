// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How large an lse must be for its rounding to float32 to show. Without library code: kernels of one instruction set
// include it.
#pragma once

namespace tangram {

/// Least lse whose float32 step is 2^-13 or more, so that probabilities are off by half of it.
inline constexpr float kLargeLse = 0x1p10f;
/// Least lse whose float32 step is 1 or more: lse does not say whether a call has all keys of a row.
inline constexpr float kCoarseLse = 0x1p23f;

inline bool is_large_lse(float lse) {
  const float magnitude = lse < 0 ? -lse : lse;
  return kLargeLse <= magnitude && magnitude < kCoarseLse;
}

}  // namespace tangram
