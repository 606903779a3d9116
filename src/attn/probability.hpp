// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Probabilities of backward passes that compute in float64.
#pragma once

#include <cmath>

namespace tangram {

/// exp(score - lse). `lse` was rounded to float32, `score` was not: a score that rounds to lse has the row to itself,
/// as far as lse says, and gets all of it. Otherwise such a row of large scores would be off by half a step of lse.
inline double probability(double score, float lse) {
  return static_cast<float>(score) == lse ? 1 : std::exp(score - double{lse});
}

}  // namespace tangram
