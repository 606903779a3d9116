// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Checks of what callers pass to planning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tangram/plan.hpp"

namespace tangram {

/// A parameter that is set though the strategy or movement has none such: its field and what would have it.
struct UselessParameter {
  std::string name;   ///< `ulysses_degree`
  std::string needs;  ///< `strategy usp or loong_train (got ring)`
};
/// The first of them, if any. With strategy auto, which takes none, validate_config says so.
std::optional<UselessParameter> find_useless(const StrategyConfig& strategy);
std::optional<UselessParameter> find_useless(const MovementConfig& movement);

/// Throws InvalidArgument, its text starting with `function`, unless counts and dims are positive and a row is not too
/// long. The query heads must be a multiple of the K/V heads.
void validate_heads(const HeadConfig& heads, const char* function);

/// Throws InvalidArgument, its text starting with `function`, unless every value is in range.
void validate_config(const DistAttnConfig& config, const char* function);

/// Like validate_config, for the config of a plan for one mask: checks `movement` too.
void validate_config_of_mask(const DistAttnConfig& config, const char* function);

/// Like validate_config_of_mask; checks too that the mask's sequences are whole chunks.
void validate_plan_request(const Mask& mask, const DistAttnConfig& config, const char* function);

/// Throws InvalidArgument unless the dispatch is well formed: covers `seqlen`, ranks in range, equal chunk counts.
/// `what` names function and argument.
void validate_dispatch(const Dispatch& dispatch, int cp_size, int64_t seqlen, const char* what);

}  // namespace tangram
