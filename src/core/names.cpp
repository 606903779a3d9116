// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/names.hpp"

#include <fmt/format.h>

#include <string>

#include "core/nearest_word.hpp"
#include "tangram/error.hpp"

namespace tangram {

void refuse_name(const char* function, std::string_view name, std::span<const std::string_view> known) {
  std::string list;
  for (const std::string_view one : known) list += (list.empty() ? "" : ", ") + std::string(one);
  throw InvalidArgument(
      fmt::format("{}: name must be one of {} (got '{}'){}", function, list, name, did_you_mean(name, known)));
}

}  // namespace tangram
