// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Checks of what callers pass to planning.
#pragma once

#include <cstdint>

#include "tangram/plan.hpp"

namespace tangram {

/// Throws InvalidArgument, its text starting with `function`, unless every value is in range.
void validate_config(const DistAttnConfig& config, const char* function);

/// The same for the config and for whole chunks of the mask's sequences.
void validate_plan_request(const Mask& mask, const DistAttnConfig& config, const char* function);

/// Throws InvalidArgument unless the dispatch is well formed: covers `seqlen`, ranks in range, equal chunk counts.
/// `what` names function and argument.
void validate_dispatch(const Dispatch& dispatch, int cp_size, int64_t seqlen, const char* what);

}  // namespace tangram
