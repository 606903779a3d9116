// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whole files in and out, with errors that name the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tangram::cli {

/// Whether an option names standard input or output, by "-".
bool is_standard_stream(std::string_view path);

/// The contents of a file, or of standard input. Throws InvalidArgument, starting with `what`, if it cannot be read or
/// exceeds `max_bytes`.
std::string read_text_file(const std::string& path, std::string_view what, int64_t max_bytes);

/// A file that will be written, and the option that names it; an empty path is none.
struct OutputFile {
  std::string_view option;
  std::string path;
};

/// Checks output files before the work whose results they take: throws InvalidArgument if one of them cannot be
/// written, or two are the same. Writes nothing; a disk may still fill up until `write_file`.
void require_writable(const std::vector<OutputFile>& files);

/// Prints `text` and sees it through. Throws InvalidArgument when standard output takes no more.
void print_text(std::string_view text);

/// Replaces the file by `head` and then `rest`, or prints both. Throws InvalidArgument, starting with `what`, if it
/// cannot be written completely; what was there before then stays.
void write_file(const std::string& path, std::string_view what, std::string_view head, std::string_view rest = {});

}  // namespace tangram::cli
