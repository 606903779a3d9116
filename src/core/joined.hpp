// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tangram {

/// "1, 2, 3". fmt::join would compile the formatters of whole numbers into every unit that calls it.
std::string joined(std::span<const int> numbers, std::string_view separator = ", ");

}  // namespace tangram
