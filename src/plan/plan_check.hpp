// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whether a plan that comes from outside is one: what follows from mask, dispatches and stage numbers is made again.
#pragma once

#include "tangram/plan.hpp"

namespace tangram {

/// Makes everything that follows from mask, configuration, dispatches and stage numbers, and throws InvalidArgument
/// where the plan says something else. What a heuristic chose is taken as it is. Adds what plans do not write: grid and
/// moved work.
void check_consistent(Plan& plan);

}  // namespace tangram
