// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// JSON that strangers wrote: parsed by events with limits, so that no input can exhaust stack or memory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace tangram::cli {

using Json = nlohmann::json;

struct JsonLimits {
  int max_depth = 8;
  int64_t max_bytes = int64_t{64} << 20;
  int64_t max_values = 8'000'000;
  int64_t max_string_bytes = 4096;
};

/// Parses `text`. Throws InvalidArgument, starting with `what`, when it is malformed, beyond a limit or repeats a key.
Json parse_bounded_json(std::string_view text, std::string_view what, const JsonLimits& limits = {});

/// Throws InvalidArgument unless `object` is an object with keys out of `allowed` only; the text names the nearest
/// allowed key.
void require_known_keys(const Json& object, std::string_view what, std::span<const std::string_view> allowed);

/// `value` as a whole number in [min, max]. `name` says in errors where it stands, e.g. `q_ranges[3][0]`.
int64_t whole_number(const Json& value, std::string_view what, const std::string& name, int64_t min, int64_t max);

/// `value` as text of at most 80 characters, for messages.
std::string brief(const Json& value);

}  // namespace tangram::cli
