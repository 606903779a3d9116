// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ranks as processes that a program starts by itself, for programs without mpirun.
#pragma once

#include <exception>
#include <functional>

#include "tangram/communicator.hpp"

namespace tangram::comm {

/// Forks `size` processes that are the ranks of a SocketGroup on this host, runs `rank_main` in each, and returns when
/// all have ended. Returns 0 if all returned 0, else the result of the rank that failed first (128 + n if signal n
/// ended it). After a failure the other ranks get `timeout_s` (0: Env::timeout_s) to end by themselves, then they are
/// killed. Ranks die with this process. Call it before the process has threads or uses CUDA. What `rank_main` or the
/// meeting of the ranks throws goes to `on_error`, whose result is returned instead. Throws InvalidArgument unless size
/// >= 1, CommError when no process or no folder can be made.
int run_forked_ranks(int size, const std::function<int(Communicator&)>& rank_main,
                     const std::function<int(const std::exception&)>& on_error, double timeout_s = 0);

}  // namespace tangram::comm
