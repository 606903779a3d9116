// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/text_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "cli/unfinished.hpp"
#include "core/require.hpp"

namespace tangram::cli {

namespace {

struct WriteTarget {
  std::string path;        // what is written
  std::string final_path;  // what it becomes once it is complete
  int error = 0;
  std::unique_ptr<Unfinished> partial;  // where these are two
};

// Beside the file, so that a full disk leaves no half of it; devices and pipes are written as they are.
WriteTarget target_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) return {path, path, 0, nullptr};
  if (fs::exists(status) && ::access(path.c_str(), W_OK) != 0) return {path, path, errno, nullptr};
  const std::string final_path = fs::exists(status) ? fs::canonical(path, ignored).string() : path;
  const std::string beside = fmt::format("{}.{}.partial", final_path, ::getpid());
  auto partial = std::make_unique<Unfinished>(beside);
  std::ofstream probe(beside, std::ios::binary);
  if (!probe.is_open()) return {path, path, 0, nullptr};  // a folder that takes no new files may still have this one
  if (fs::exists(status)) fs::permissions(beside, status.permissions(), ignored);
  return {beside, final_path, 0, std::move(partial)};
}

// Why `path` cannot be written, as errno says it, or 0.
int write_obstacle(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) return EISDIR;
  // The dot makes a file in the folder's place an error of its own.
  const fs::path folder = (path.has_parent_path() ? path.parent_path() : fs::path(".")) / ".";
  const int result = fs::exists(status) ? ::access(path.c_str(), W_OK) : ::access(folder.c_str(), W_OK | X_OK);
  return result == 0 ? 0 : errno;
}

// Devices and pipes take what several options write, one after the other.
bool is_same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (is_standard_stream(a) || is_standard_stream(b)) return a == b;
  if (fs::is_other(fs::status(a, ignored))) return false;
  return fs::weakly_canonical(fs::absolute(a, ignored), ignored) ==
         fs::weakly_canonical(fs::absolute(b, ignored), ignored);
}

}  // namespace

bool is_standard_stream(std::string_view path) { return path == "-"; }

void require_writable(const std::vector<OutputFile>& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    const auto& [option, path] = files[i];
    if (path.empty()) continue;
    const int error = is_standard_stream(path) ? 0 : write_obstacle(path);
    require(error == 0, "{}: cannot write '{}': {}", option, path, std::strerror(error));
    for (size_t j = 0; j < i; ++j) {
      require(files[j].path.empty() || !is_same_file(files[j].path, path),
              "{}, {}: must name different files (got '{}' and '{}')", files[j].option, option, files[j].path, path);
    }
  }
}

std::string read_text_file(const std::string& path, std::string_view what, int64_t max_bytes) {
  std::error_code error;
  const bool is_input = is_standard_stream(path);
  require(is_input || !std::filesystem::is_directory(path, error), "{}: cannot read '{}': it is a directory", what,
          path);
  errno = 0;
  std::ifstream opened;
  if (!is_input) opened.open(path, std::ios::binary);
  require(is_input || opened.is_open(), "{}: cannot read '{}': {}", what, path, std::strerror(errno));
  std::istream& file = is_input ? std::cin : static_cast<std::istream&>(opened);
  std::string contents;
  char buffer[1 << 16];
  // Read rather than ask for the size: pipes have none.
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    contents.append(buffer, static_cast<size_t>(file.gcount()));
    require(static_cast<int64_t>(contents.size()) <= max_bytes, "{}: '{}' must not exceed {} bytes", what, path,
            max_bytes);
  }
  // Editors on Windows put a byte order mark in front.
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (contents.rfind(kByteOrderMark, 0) == 0) contents.erase(0, kByteOrderMark.size());
  require(!is_input || !contents.empty(), "{}: there must be text at standard input, which one option reads (got none)",
          what);
  return contents;
}

void print_text(std::string_view text) {
  // Flushing alone does not tell: what failed to be written before is no longer in the buffer.
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  const int error = errno;
  require(written, "cannot write to standard output: {}", std::strerror(error));
}

void write_file(const std::string& path, std::string_view what, std::string_view head, std::string_view rest) {
  if (is_standard_stream(path)) {
    print_text(head);
    print_text(rest);
    return;
  }
  const WriteTarget target = target_of(path);
  errno = target.error;
  std::ofstream file;
  if (target.error == 0) file.open(target.path, std::ios::binary | std::ios::trunc);
  require(file.is_open(), "{}: cannot write '{}': {}", what, path, std::strerror(errno));
  file.write(head.data(), static_cast<std::streamsize>(head.size()));
  file.write(rest.data(), static_cast<std::streamsize>(rest.size()));
  file.close();
  int error = file.fail() ? errno : 0;
  if (target.partial != nullptr && error == 0) {
    if (std::rename(target.path.c_str(), target.final_path.c_str()) != 0) error = errno;
    if (error == 0) target.partial->keep();
  }
  require(error == 0, "{}: cannot write '{}': {}", what, path, std::strerror(error));
}

}  // namespace tangram::cli
