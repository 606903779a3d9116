// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which process a rank is. Process numbers alone repeat: between hosts, and between containers of one host.
#pragma once

#include <cstdint>
#include <span>

namespace tangram::comm {

struct ProcessIdentity {
  char host[64] = {};      // name, for messages
  char boot[40] = {};      // of the host's kernel, as it was started; empty where the system does not tell
  char node[64] = {};      // Env::node_id; empty: the host is the node
  uint64_t numbering = 0;  // the name space in which the process has its number
  int64_t number = 0;

  static ProcessIdentity own();
  /// Whether addresses of one mean the same to the other.
  bool is_same_process(const ProcessIdentity& other) const;
  bool is_same_host(const ProcessIdentity& other) const;
  /// Whether both are on one node: by Env::node_id if either has it, else by host.
  bool is_same_node(const ProcessIdentity& other) const;
  /// Name of the node in errors.
  const char* node_name() const { return node[0] != '\0' ? node : host; }
};

/// Whether the ranks are threads of one process. Throws NotAvailable, alike on all ranks, unless they are on one host.
bool are_one_process(std::span<const ProcessIdentity> ranks);

}  // namespace tangram::comm
