// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whole files in and out, with errors that name the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tangram::cli {

/// The contents of a file. Throws InvalidArgument, starting with `what`, if it cannot be read or exceeds `max_bytes`.
std::string read_text_file(const std::string& path, std::string_view what, int64_t max_bytes);

/// Replaces the file. Throws InvalidArgument, starting with `what`, if it cannot be written completely.
void write_text_file(const std::string& path, std::string_view what, std::string_view contents);

}  // namespace tangram::cli
