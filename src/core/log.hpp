// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "tangram/log.hpp"

namespace tangram {

/// Hands the line to the sink, if there is one.
void log_line(const std::string& line);

/// When a wait has taken so long that it should be mentioned: from half of its deadline on, four times.
class WaitNotes {
 public:
  explicit WaitNotes(double timeout_s) : timeout_s_(timeout_s), next_s_(timeout_s / 2) {}
  /// Seconds of waiting after which the next note is due.
  double next_s() const { return next_s_; }
  bool is_due(double waited_s) const { return waited_s >= next_s_ && next_s_ < timeout_s_; }
  /// `group_cast 'kv stage 1': waits for rank 1, 300 of 600 s`.
  void note(const std::string& operation, const std::string& ranks, int rank, double waited_s);
  void reset() { next_s_ = timeout_s_ / 2; }

 private:
  double timeout_s_;
  double next_s_;
};

}  // namespace tangram
