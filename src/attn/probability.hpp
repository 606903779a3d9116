// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Probabilities of backward passes where lse is so large that rounding it to float32 shows.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "attn/large_lse.hpp"

namespace tangram {

/// Rounding error of `lse` in float32, or NaN if it is unknown or too small to matter. `of_call`: lse of the keys and
/// the sink of one call, not rounded. If it is within a step of `lse`, the call has all keys of the row, as far as lse
/// tells. Its probabilities then add up to 1.
inline double lse_rest(float lse, double of_call) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  if (!is_large_lse(lse)) return kUnknown;
  const float magnitude = std::abs(lse);
  const double step = double{std::nextafter(magnitude, 2 * magnitude)} - magnitude;
  const double rest = of_call - lse;
  return std::abs(rest) <= step ? rest : kUnknown;
}

/// Probabilities of one row in float64.
class RowProbability {
 public:
  /// `scores`: of all keys that the row sees in this call; `sink`: lse of its sink, or -inf.
  RowProbability(std::span<const double> scores, double sink, float lse) : lse_(lse) {
    if (!is_large_lse(lse)) return;
    double max = sink;
    for (const double score : scores) max = std::max(max, score);
    double sum = std::exp(sink - max);
    for (const double score : scores) sum += std::exp(score - max);
    rest_ = lse_rest(lse, max + std::log(sum));
  }

  /// Whether the call has all keys of a row whose lse is large, so that its probabilities add up to 1. Such a row's
  /// delta is better summed from them than from an out that was rounded.
  bool is_whole() const { return !std::isnan(rest_); }

  /// A score that rounds to lse has the row to itself, as far as lse says, and gets all of it, unless more is known.
  /// Otherwise such a row of large scores would be off by half a step of lse.
  double operator()(double score) const {
    if (is_whole()) return std::exp(score - double{lse_} - rest_);
    return static_cast<float>(score) == lse_ ? 1 : std::exp(score - double{lse_});
  }

 private:
  float lse_;
  double rest_ = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace tangram
