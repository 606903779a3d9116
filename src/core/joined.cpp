// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/joined.hpp"

namespace tangram {

std::string joined(std::span<const int> numbers, std::string_view separator) {
  std::string text;
  for (const int number : numbers) {
    if (!text.empty()) text += separator;
    text += std::to_string(number);
  }
  return text;
}

}  // namespace tangram
