// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What tests of steps on host memory share, besides the steps themselves.
#pragma once

#include <cstdlib>

#include "runtime/step.hpp"

namespace tangram::testing {

// Rows that were not received are NaN in every build of these tests: reading one spoils the results.
[[maybe_unused]] inline const int kPoison = setenv("TANGRAM_SANITY_CHECK", "1", 1);

// Partial results are rounded to float32 once a stage or part, and sums of them once per contribution.
inline constexpr double kFloat32Tolerance = 2e-6;

#if defined(__SANITIZE_THREAD__)
inline constexpr int kCpSizes[] = {2, 3};  // ten times slower there, and more ranks bring no other kind of race
#else
inline constexpr int kCpSizes[] = {2, 3, 4, 8};
#endif

}  // namespace tangram::testing
