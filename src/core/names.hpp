// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Enumerators by name, from a table of them.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tangram {

template <class T, size_t kSize>
using Names = std::array<std::pair<T, std::string_view>, kSize>;

/// Throws InvalidArgument: `FUNCTION: name must be one of A, B (got 'C') (did you mean 'B'?)`.
[[noreturn]] void refuse_name(const char* function, std::string_view name, std::span<const std::string_view> known);

/// The value's name, `unknown` for none of the table.
template <class T, size_t kSize>
std::string_view name_in(const Names<T, kSize>& table, T value) {
  for (const auto& [known, name] : table) {
    if (known == value) return name;
  }
  return "unknown";
}

/// The value of that name; any other is refused.
template <class T, size_t kSize>
T value_in(const Names<T, kSize>& table, std::string_view name, const char* function) {
  std::vector<std::string_view> names;
  for (const auto& [value, known] : table) {
    if (known == name) return value;
    names.push_back(known);
  }
  refuse_name(function, name, names);
}

}  // namespace tangram
