// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a user meant who wrote a name that there is not.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tangram {

/// The entry of `candidates` nearest to `word` by edit distance; empty when none is near.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> candidates);
/// ` (did you mean 'ring'?)`, or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace tangram
