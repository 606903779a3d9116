// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Runs the real program `tangram` and keeps what it printed.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace tangram::cli {

struct ProgramResult {
  int code = -1;
  std::string out;
  std::string err;
};

/// A folder that lives as long as the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tangram_cli_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file of the folder and returns its path.
  std::string write(const std::string& name, const std::string& contents) const {
    std::ofstream(path(name), std::ios::binary) << contents;
    return path(name);
  }

 private:
  std::string path_;
};

inline std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// `environment` is put before the program, e.g. `TANGRAM_TIMEOUT_S=1`.
inline ProgramResult run_program(const std::vector<std::string>& args, const std::string& environment = "") {
  const TempFolder folder;
  std::string command = environment + " '" TANGRAM_PROGRAM "'";
  for (const std::string& arg : args) command += " '" + arg + "'";
  command += " >" + folder.path("out") + " 2>" + folder.path("err") + " </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_all(folder.path("out")), read_all(folder.path("err"))};
}

}  // namespace tangram::cli
