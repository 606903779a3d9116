// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// LaunchedGroup: the group of the processes that a launcher started, whichever launcher that is.
#pragma once

#include <optional>

#include "tangram/mpi_group.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {

class LaunchedGroup {
 public:
  /// Whether mpirun, torchrun or Slurm started this process (Env::launch).
  static bool is_launched();

  /// Joins the group over MPI under mpirun, else over sockets at Env::address. Throws InvalidArgument if that is empty,
  /// and what MpiGroup and SocketGroup throw.
  LaunchedGroup();
  Communicator& communicator() { return mpi_ ? mpi_->communicator() : sockets_->communicator(); }

 private:
  std::optional<MpiGroup> mpi_;
  std::optional<SocketGroup> sockets_;
};

}  // namespace tangram::comm
