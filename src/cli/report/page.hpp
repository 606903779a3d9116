// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What pages are put together with.
#pragma once

#include <string>
#include <string_view>

namespace tangram::cli {

/// Replaces the first occurrence of `mark`, if there is one.
void fill_in(std::string& text, std::string_view mark, std::string_view value);

/// `text` with the characters that mean something in HTML and SVG written out.
std::string html_escaped(std::string_view text);

}  // namespace tangram::cli
