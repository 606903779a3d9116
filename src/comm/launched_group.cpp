// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/launched_group.hpp"

#include "core/require.hpp"
#include "tangram/env.hpp"

namespace tangram::comm {

bool LaunchedGroup::is_launched() { return !Env::launch().launcher.empty(); }

LaunchedGroup::LaunchedGroup() {
  const Env::Launch launch = Env::launch();
  if (launch.launcher == "mpirun") {
    mpi_.emplace();
    return;
  }
  const std::string& address = Env::get().address;
  require(
      launch.size == 1 || !address.empty(),
      "LaunchedGroup: under {} TANGRAM_ADDRESS must say on all ranks where they meet: tcp:HOST:PORT, a free port of "
      "the host of rank 0, with TANGRAM_SECRET; or unix:FOLDER on one host (got none)",
      launch.launcher);
  sockets_.emplace(SocketGroupConfig{launch.rank, launch.size, address});
}

}  // namespace tangram::comm
