// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Transport `local`: the ranks of a group are threads of one process, each with its own memory.
#pragma once

#include <functional>
#include <memory>

#include "tangram/communicator.hpp"

namespace tangram {

/// A group of ranks inside this process. Each rank has a thread of its own that moves its rows while the rank computes.
class LocalGroup {
 public:
  /// `timeout_s` bounds every wait for a peer; 0: Env::timeout_s. Throws InvalidArgument unless size >= 1 and timeout_s
  /// is finite and not negative.
  explicit LocalGroup(int size, double timeout_s = 0);
  /// Operations still under way are aborted.
  ~LocalGroup();
  LocalGroup(LocalGroup&&) noexcept;
  LocalGroup& operator=(LocalGroup&&) noexcept;

  int size() const;
  /// The communicator of one rank, which lives as long as the group. Throws InvalidArgument for a rank outside it.
  Communicator& communicator(int rank);
  /// Declares that `rank` makes no further calls. Peers that wait for it throw CommError at once, not at the deadline.
  void leave(int rank);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs `rank_main` once per rank of a new group, each on a thread of its own, and returns when all have ended. When
/// some throw, the others' waits end too, and the error that came first is thrown again here.
void run_local_ranks(int cp_size, const std::function<void(Communicator&)>& rank_main, double timeout_s = 0);

}  // namespace tangram
