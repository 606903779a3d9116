// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Beacon: how ranks of one host see whether each other's processes exist, without MPI, which hangs when one does not.
// A process holds a socket in Linux's abstract name space; the kernel removes it when the process ends, however it
// ends.
#pragma once

#include <string>

namespace tangram::comm {

class Beacon {
 public:
  /// Shows that `rank` of `job` lives. Without a name space of sockets it shows nothing and sees everybody alive.
  Beacon(std::string job, int rank);
  ~Beacon();
  Beacon(const Beacon&) = delete;
  Beacon& operator=(const Beacon&) = delete;

  /// Whether the process of `rank` exists on this host.
  bool sees(int rank) const;

 private:
  std::string job_;
  int socket_ = -1;
};

}  // namespace tangram::comm
