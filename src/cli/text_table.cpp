// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/text_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tangram::cli {

namespace {

// Columns that a UTF-8 text takes, every code point counted as one.
size_t columns_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string with_commas(int64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    text.push_back(digits[i]);
    const size_t num_left = digits.size() - 1 - i;
    if (num_left > 0 && num_left % 3 == 0 && digits[i] != '-') text.push_back(',');
  }
  return text;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 5) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes)
                   : fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : 1, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.1f} µs", seconds * 1e6);
}

std::string TextTable::text() const {
  std::vector<size_t> widths(head_.size());
  for (size_t c = 0; c < head_.size(); ++c) {
    widths[c] = columns_of(head_[c]);
    for (const auto& row : rows_) widths[c] = std::max(widths[c], columns_of(row[c]));
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line = " ";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - columns_of(row[c]), ' ');
      line += c == 0 ? " " : "   ";
      line += c == 0 ? row[c] : space;
      line += c == 0 ? space : row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  append(head_);
  std::vector<std::string> rule;
  for (const size_t width : widths) {
    std::string dashes;
    for (size_t i = 0; i < width; ++i) dashes += "─";
    rule.push_back(dashes);
  }
  append(rule);
  for (const auto& row : rows_) append(row);
  return text;
}

std::string bar_text(double fraction, int width) {
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * width * 8));
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  for (int i = (eighths + 7) / 8; i < width; ++i) bar += " ";
  return bar;
}

}  // namespace tangram::cli
