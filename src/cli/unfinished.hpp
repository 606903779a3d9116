// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What must not stay behind when the program ends, or is ended, before it is done with it.
#pragma once

#include <string>

namespace tangram::cli {

/// A file, or an empty folder, that is removed at the end of the object and by a signal that ends the program, unless
/// `keep` was called. At most eight at once; further ones are not watched.
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

/// Lets interrupts remove unfinished files before they end the program. A file that exceeds its limit becomes an error
/// of the writer instead of ending the program.
void handle_signals();

}  // namespace tangram::cli
