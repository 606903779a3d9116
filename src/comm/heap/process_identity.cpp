// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/heap/process_identity.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

ProcessIdentity ProcessIdentity::own() {
  ProcessIdentity identity;
  ::gethostname(identity.host, sizeof(identity.host) - 1);
  std::ifstream("/proc/sys/kernel/random/boot_id").read(identity.boot, sizeof(identity.boot) - 1);
  const std::string& node = Env::get().node_id;
  std::memcpy(identity.node, node.data(), std::min(node.size(), sizeof(identity.node) - 1));
  struct stat numbering = {};
  if (::stat("/proc/self/ns/pid", &numbering) == 0) identity.numbering = numbering.st_ino;
  identity.number = ::getpid();
  return identity;
}

bool ProcessIdentity::is_same_host(const ProcessIdentity& other) const {
  const bool told = boot[0] != '\0' && other.boot[0] != '\0';
  return told ? std::strcmp(boot, other.boot) == 0 : std::strcmp(host, other.host) == 0;
}

bool ProcessIdentity::is_same_node(const ProcessIdentity& other) const {
  const bool told = node[0] != '\0' || other.node[0] != '\0';
  return told ? std::strcmp(node, other.node) == 0 : is_same_host(other);
}

bool ProcessIdentity::is_same_process(const ProcessIdentity& other) const {
  return is_same_host(other) && numbering == other.numbering && number == other.number;
}

bool are_one_process(std::span<const ProcessIdentity> ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].is_same_host(ranks[0])) continue;
    throw NotAvailable(
        fmt::format("make_device_communicator: all ranks must be on one host (rank 0 is on {}, rank {} on {})",
                    ranks[0].host, rank, ranks[rank].host));
  }
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const ProcessIdentity& rank) { return rank.is_same_process(ranks[0]); });
}

}  // namespace tangram::comm
