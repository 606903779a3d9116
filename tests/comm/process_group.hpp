// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ranks as processes forked from a test, and what became of each.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tangram::testing {

struct Outcome {
  bool ended = false;  // by itself, within the limit
  int exit_code = -1;
  std::string error_type;  // `Timeout`, `CommError`, ... of the tangram error that the rank threw; empty: none
  std::string error_text;
  double seconds = 0;  // from the start to its end
};

/// Runs `rank_main` in one forked process per rank and returns when all have ended or were stopped by a signal, or
/// after `limit_s`, and kills what is left. Failed expectations inside a rank show on its stderr and in its exit code.
/// The calling process must have no other threads.
std::vector<Outcome> run_processes(int size, const std::function<void(int rank)>& rank_main, double limit_s = 60);

/// A fresh folder for Unix sockets, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tangram::testing
