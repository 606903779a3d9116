// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Transport `mpi`: the ranks of a group are the processes of an mpirun, on one host or several.
#pragma once

#include <memory>
#include <string>

#include "tangram/communicator.hpp"

namespace tangram {

/// This process's place among the processes that `mpirun` started. OpenMPI is loaded when the object is made: a program
/// that can use it also runs where it is not installed.
class MpiGroup {
 public:
  /// Empty when a group can be made here, otherwise the reason why not (not built in, OpenMPI not installed).
  static std::string unavailable_reason();
  /// Whether mpirun started this process.
  static bool is_launched();

  /// Starts MPI unless the program has. `timeout_s` bounds every wait for a peer; 0: Env::timeout_s. Throws
  /// NotAvailable with the reason, Timeout naming the ranks that did not start, and InvalidArgument for a bad timeout.
  /// One group at a time.
  explicit MpiGroup(double timeout_s = 0);
  /// Ends MPI if this object started it, which waits for the other ranks; not after a failure, when they may be gone.
  ~MpiGroup();
  MpiGroup(MpiGroup&&) noexcept;
  MpiGroup& operator=(MpiGroup&&) noexcept;

  Communicator& communicator();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tangram
