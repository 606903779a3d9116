// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What must not stay behind when the program ends, or is ended, before it is done with it.
#pragma once

#include <string>

namespace tangram::cli {

/// A file, or a folder while it is empty, that is removed at the end of the object and by a signal that ends the
/// program, unless `keep` was called. At most eight at once; further ones are not watched.
class Unfinished {
 public:
  explicit Unfinished(const std::string& path);
  ~Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  void keep();

 private:
  int slot_ = -1;
};

/// Lets interrupts remove what is unfinished before they end the program, and makes a file that grows beyond its limit
/// an error of who writes it instead of the program's end.
void handle_signals();

}  // namespace tangram::cli
