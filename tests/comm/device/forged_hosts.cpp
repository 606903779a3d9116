// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/forged_hosts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tangram/error.hpp"

namespace tangram::testing {

namespace {

void require_done(bool done, const char* what) {
  if (!done) throw NotAvailable(fmt::format("forged hosts: {}: {}", what, std::strerror(errno)));
}

void run_ip(const std::string& arguments) {
  require_done(std::system(("ip " + arguments + " >/dev/null 2>&1").c_str()) == 0, ("ip " + arguments).c_str());
}

void write_file(const char* path, const std::string& text) {
  std::ofstream(path) << text;  // refused without harm where the user has no such right
}

int open_network() { return ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC); }

}  // namespace

ForgedHosts::ForgedHosts() {
  const auto user = ::getuid();
  const auto group = ::getgid();
  require_done(::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0, "unshare");
  write_file("/proc/self/setgroups", "deny");
  write_file("/proc/self/uid_map", fmt::format("0 {} 1", user));
  write_file("/proc/self/gid_map", fmt::format("0 {} 1", group));
  hosts_[0] = open_network();
  require_done(::unshare(CLONE_NEWNET) == 0, "unshare of the second network");
  hosts_[1] = open_network();
  holder_ = ::fork();  // which `ip` finds the second network by
  if (holder_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it holds the pipes of its parent, whose reader waits for their end
    while (true) ::pause();
  }
  try {
    connect();
  } catch (...) {
    release();
    throw;
  }
}

void ForgedHosts::connect() {
  lay_cable("cable", kAddress);
  lay_cable("card", kCardAddress);
  for (int host = 0; host < 2; ++host) {
    enter(host);
    run_ip("link set lo up");
  }
  enter(0);
}

void ForgedHosts::lay_cable(const std::string& name, const char* const addresses[2]) {
  enter(0);
  run_ip(fmt::format("link add {} type veth peer name {}_end netns {}", name, name, holder_));
  for (int host = 0; host < 2; ++host) {
    enter(host);
    const std::string end = host == 0 ? name : name + "_end";
    run_ip(fmt::format("addr add {}/24 dev {}", addresses[host], end));
    run_ip(fmt::format("link set {} up", end));
  }
}

ForgedHosts::~ForgedHosts() { release(); }

void ForgedHosts::release() {
  if (holder_ > 0) {
    ::kill(holder_, SIGKILL);
    ::waitpid(holder_, nullptr, 0);
  }
  for (const int host : hosts_) ::close(host);
}

void ForgedHosts::enter(int host) const { require_done(::setns(hosts_[host], CLONE_NEWNET) == 0, "setns"); }

void ForgedHosts::cut_cable() { run_ip("link set cable_end down"); }

void ForgedHosts::lose_card() { run_ip("link set card_end down"); }

}  // namespace tangram::testing
