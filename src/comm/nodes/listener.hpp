// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Groups that meet by TCP, out of the ranks of a communicator: who leads one listens before it says where.
#pragma once

#include <string>

#include "comm/socket/link.hpp"
#include "tangram/communicator.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {

/// A socket that listens at a free port of the host's address, on no other interface.
struct Listener {
  UniqueFd fd;
  std::string address;  // HOST:PORT, numeric
};

/// Throws CommError where the host's name does not resolve to an address of this machine.
Listener listen_at_host(const std::string& host);

/// A name of this host by which the other ranks reach it: where the ranks are connected by TCP the own end of that,
/// on one host 127.0.0.1, else the host's name. Collective.
std::string host_address(Communicator& control);

/// This rank's place in a group out of those of `control`.
struct SubgroupPlace {
  int leader = 0;  // rank of `control` that is rank 0 of the group
  int rank = 0;
  int size = 1;
};

/// How ranks meet once more by TCP: the leader listens at `host`, its host_address, and its secret is Env::secret or,
/// if there is none, drawn anew. Collective over `control`; throws CommError on all ranks where a leader cannot listen.
SocketGroupConfig meeting_by_tcp(Communicator& control, const SubgroupPlace& place, const std::string& host,
                                 double timeout_s);

}  // namespace tangram::comm
