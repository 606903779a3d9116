// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Numbers and tables as people read them on a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tangram::cli {

/// `131,072`.
std::string with_commas(int64_t value);
/// `1.5 GiB`, `640 B`.
std::string bytes_text(double bytes);
/// `12.3 ms`, `4.5 s`, `890 µs`.
std::string seconds_text(double seconds);

/// A table with a head. The first column is left-aligned, the others to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) : head_(std::move(head)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// The lines, each indented by two spaces and ended by a newline.
  std::string text() const;

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<std::string>> rows_;
};

/// `fraction` of `width` cells as a bar of block characters, in eighths of a cell.
std::string bar_text(double fraction, int width);

}  // namespace tangram::cli
