// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Two hosts on one machine: network namespaces that a virtual cable joins, for tests of what happens when it is cut.
#pragma once

#include <functional>
#include <string>

namespace tangram::testing {

class ForgedHosts {
 public:
  /// In the calling process, which must have no threads: it gets a name space of users, and is on host 0 then. Throws
  /// NotAvailable with the reason where that is not permitted, or the program `ip` is missing.
  ForgedHosts();
  ~ForgedHosts();
  ForgedHosts(const ForgedHosts&) = delete;
  ForgedHosts& operator=(const ForgedHosts&) = delete;

  static constexpr const char* kAddress[] = {"10.77.0.1", "10.77.0.2"};
  /// Addresses of network cards of their own, which a second cable joins.
  static constexpr const char* kCardAddress[] = {"10.78.0.1", "10.78.0.2"};

  /// Puts the calling process on host 0 or 1.
  void enter(int host) const;
  /// From host 1: nothing passes the cable any more.
  static void cut_cable();
  /// From host 1: its second card is lost.
  static void lose_card();

 private:
  void connect();
  void lay_cable(const std::string& name, const char* const addresses[2]);
  void release();

  int hosts_[2] = {-1, -1};
  int holder_ = -1;
};

}  // namespace tangram::testing
