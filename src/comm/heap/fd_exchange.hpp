// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// FdExchange: every process of a group gives a file descriptor to every other, over Unix sockets (SCM_RIGHTS).
#pragma once

#include <vector>

#include "comm/socket/link.hpp"
#include "tangram/communicator.hpp"

namespace tangram::comm {

class FdExchange {
 public:
  /// Collective over `control`, whose ranks are processes of one host.
  FdExchange(Communicator& control, double timeout_s);

  /// The ranks' descriptors, by rank; the own entry is empty. Every rank passes an open one and keeps it. Collective.
  /// Throws Timeout naming the ranks whose descriptor did not come.
  std::vector<UniqueFd> exchange(int fd);

 private:
  bool send_to(int peer, int fd);
  void receive(std::vector<UniqueFd>& received);

  Communicator& control_;
  const double timeout_s_;
  UniqueFd socket_;
  std::vector<uint64_t> names_;  // of the ranks' sockets
  uint64_t round_ = 0;
};

}  // namespace tangram::comm
