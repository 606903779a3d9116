// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Transport `socket`: the ranks of a group are processes that connect to each other by themselves, without MPI.
#pragma once

#include <memory>
#include <string>

#include "tangram/communicator.hpp"

namespace tangram {

struct SocketGroupConfig {
  int rank = 0;
  int size = 1;
  /// Rendezvous address, the same on all ranks. `unix:FOLDER`: an existing folder of one host, used by this group
  /// alone. `tcp:HOST:PORT`: rank 0 listens there. HOST must be a name under which all ranks reach rank 0. Ranks listen
  /// on the interface that it names, or that leads there, and on no other.
  std::string address;
  /// Bounds the wait for all ranks and every later wait for a peer; 0: Env::timeout_s.
  double timeout_s = 0;
  /// Secret of this job, the same on all ranks, best drawn at random for each job; empty: Env::secret. `tcp:` needs
  /// one. Ranks prove to each other that they know it; a process that does not is dropped. Rows are sent unencrypted:
  /// only for networks without eavesdroppers.
  std::string secret;
  /// Bounds the wait for all ranks alone; 0: timeout_s.
  double setup_timeout_s = 0;
  /// Rank 0 with `tcp:`: a socket that listens at the address already. Without it another process could take the port
  /// after the address was given out. The group takes it over and closes it. -1: none.
  int listener = -1;
};

/// This process's place in a group of processes that are connected by sockets, each with each.
class SocketGroup {
 public:
  /// Returns when all ranks are connected. Throws Timeout that names the missing ranks, and CommError if the address
  /// cannot be used. Throws InvalidArgument for a bad config: no secret for `tcp:`, sizes that differ between ranks, a
  /// rank given twice.
  explicit SocketGroup(const SocketGroupConfig& config);
  /// Ends when the calls made so far are done. Peers that go on calling throw CommError.
  ~SocketGroup();
  SocketGroup(SocketGroup&&) noexcept;
  SocketGroup& operator=(SocketGroup&&) noexcept;

  Communicator& communicator();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tangram
