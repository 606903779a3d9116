// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What ranks compare beside plans, in one word: the name of the backend, so that errors can tell it, and a hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tangram {

inline constexpr size_t kNameCharacters = 5;
inline constexpr int kHashBits = 64 - 8 * static_cast<int>(kNameCharacters);

/// The first characters of `backend`, and the lower bits of `hash`.
inline uint64_t options_word(std::string_view backend, uint64_t hash) {
  uint64_t word = 0;
  for (size_t i = 0; i < kNameCharacters; ++i) {
    word = word << 8 | (i < backend.size() ? static_cast<unsigned char>(backend[i]) : 0u);
  }
  return word << kHashBits | (hash & ((uint64_t{1} << kHashBits) - 1));
}

/// The characters that options_word kept of the backend's name.
inline std::string backend_of_word(uint64_t word) {
  std::string name;
  for (int shift = 64 - 8; shift >= kHashBits; shift -= 8) {
    if (const auto letter = static_cast<char>(word >> shift & 0xff); letter != '\0') name += letter;
  }
  return name;
}

}  // namespace tangram
