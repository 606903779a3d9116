// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Tables of docs/results, rows as values by the names of their columns.
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tangram::support {

using CsvRow = std::map<std::string, std::string>;

/// Rows of a CSV file whose values hold no commas. Throws if the file does not exist.
inline std::vector<CsvRow> read_csv(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("read_csv: cannot read " + path);
  const auto next = [&](std::vector<std::string>& cells) {
    std::string line;
    if (!std::getline(stream, line)) return false;
    cells.clear();
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, ',');) cells.push_back(cell);
    return true;
  };
  std::vector<std::string> names, cells;
  std::vector<CsvRow> rows;
  next(names);
  while (next(cells)) {
    CsvRow& row = rows.emplace_back();
    for (size_t i = 0; i < cells.size(); ++i) row[names.at(i)] = cells[i];
  }
  return rows;
}

/// Path of a table of docs/results.
inline std::string result_path(const std::string& name) {
  return std::string(TANGRAM_TEST_DATA) + "/../../docs/results/data/" + name;
}

}  // namespace tangram::support
