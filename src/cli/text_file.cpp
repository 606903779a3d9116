// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/text_file.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/require.hpp"

namespace tangram::cli {

std::string read_text_file(const std::string& path, std::string_view what, int64_t max_bytes) {
  std::error_code error;
  require(!std::filesystem::is_directory(path, error), "{}: cannot read '{}': it is a directory", what, path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), "{}: cannot read '{}': {}", what, path, std::strerror(errno));
  std::string contents;
  char buffer[1 << 16];
  // Read rather than ask for the size: pipes have none.
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    contents.append(buffer, static_cast<size_t>(file.gcount()));
    require(static_cast<int64_t>(contents.size()) <= max_bytes, "{}: '{}' must not exceed {} bytes", what, path,
            max_bytes);
  }
  return contents;
}

void write_text_file(const std::string& path, std::string_view what, std::string_view contents) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  require(file.is_open(), "{}: cannot write '{}': {}", what, path, std::strerror(errno));
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  file.close();
  require(!file.fail(), "{}: cannot write '{}': {}", what, path, std::strerror(errno));
}

}  // namespace tangram::cli
