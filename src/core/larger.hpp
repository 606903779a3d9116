// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cmath>
#include <concepts>

namespace tangram {

/// The larger; NaN where one is.
template <std::floating_point T>
T larger(T a, T b) {
  return std::isnan(a) || a > b ? a : b;
}

}  // namespace tangram
