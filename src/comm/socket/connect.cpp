// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/socket/connect.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

#include "comm/progress_communicator.hpp"
#include "core/joined.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

constexpr uint32_t kMagic = 0x74676d68;
constexpr std::chrono::milliseconds kRetryInterval{5};
constexpr double kAttempt_s = 2;
/// Other ranks wait this much longer for rank 0's table, so that it is rank 0 that says who is missing.
constexpr double kTableGrace_s = 1;

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

struct Hello {
  uint32_t magic = kMagic;
  int32_t rank = 0;
  int32_t size = 0;
  uint32_t port = 0;  // where the rank listens, network order (tcp)
};

/// Who has connected, and what it has said so far.
struct Caller {
  UniqueFd fd;
  Address from;
  Hello hello;
  size_t num_read = 0;
};

/// What rank 0 tells a rank of another: where it is, or, for the rank itself, whether all came.
struct TableEntry {
  Address address;
  int32_t missing = 0;
};

Address unix_address(const std::string& path) {
  Address address;
  sockaddr_un un = {};
  un.sun_family = AF_UNIX;
  require(path.size() < sizeof(un.sun_path), "SocketGroup: the path of a socket must be shorter than {} bytes (got {})",
          sizeof(un.sun_path), path);
  std::memcpy(un.sun_path, path.data(), path.size());
  std::memcpy(&address.storage, &un, sizeof(un));
  address.length = sizeof(un);
  return address;
}

Address tcp_address(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (status != 0) {
    throw CommError(
        fmt::format("SocketGroup: the address must resolve (got {}:{}: {})", host, port, ::gai_strerror(status)));
  }
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

Address any_port(int family) {
  Address address;
  address.storage.ss_family = static_cast<sa_family_t>(family);  // zeros: any address, any port
  address.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

void set_port(Address& address, uint32_t port) {
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = static_cast<in_port_t>(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address.storage).sin_port = static_cast<in_port_t>(port);
  }
}

uint32_t port_of(const Address& address) {
  return address.family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port
                                      : reinterpret_cast<const sockaddr_in&>(address.storage).sin_port;
}

class Rendezvous {
 public:
  explicit Rendezvous(const SocketGroupConfig& config)
      : config_(config), deadline_s_(steady_seconds() + config.timeout_s), peers_(static_cast<size_t>(config.size)) {}

  std::vector<UniqueFd> run() {
    const std::string_view address = config_.address;
    if (config_.size == 1) return std::move(peers_);
    if (address.starts_with("unix:")) {
      meet_in_folder(std::string(address.substr(5)));
    } else if (const size_t colon = address.rfind(':'); address.starts_with("tcp:") && colon > 4) {
      meet_by_tcp(tcp_address(std::string(address.substr(4, colon - 4)), std::string(address.substr(colon + 1))));
    } else {
      require(false, "SocketGroup: address must be unix:FOLDER or tcp:HOST:PORT (got {})", address);
    }
    return std::move(peers_);
  }

 private:
  void meet_in_folder(const std::string& folder) {
    const auto path = [&](int rank) { return fmt::format("{}/rank_{}", folder, rank); };
    ::unlink(path(config_.rank).c_str());
    const UniqueFd listener = listen_at(unix_address(path(config_.rank)));
    for (int rank = 0; rank < config_.rank; ++rank) connect_to(rank, unix_address(path(rank)), 0);
    accept_until_all(listener, nullptr);
    ::unlink(path(config_.rank).c_str());
  }

  void meet_by_tcp(const Address& root) {
    if (config_.rank == 0) {
      const UniqueFd listener = listen_at(root);
      std::vector<TableEntry> table(static_cast<size_t>(config_.size));
      try {
        accept_until_all(listener, &table);
      } catch (const Timeout&) {
        for (TableEntry& entry : table) entry.missing = 1;
        send_table(table);
        throw;
      }
      send_table(table);
      return;
    }
    const UniqueFd listener = listen_at(any_port(root.family()));
    Address own = any_port(root.family());
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.length);
    connect_to(0, root, port_of(own));
    deadline_s_ += kTableGrace_s;
    std::vector<TableEntry> table(static_cast<size_t>(config_.size));
    if (!receive_all(peers_[0].get(), table.data(), table.size() * sizeof(TableEntry))) give_up_on({0});
    if (table[0].missing != 0) {
      throw Timeout(fmt::format("SocketGroup: not all ranks came to rank 0 within {:g} s", config_.timeout_s));
    }
    for (int rank = 1; rank < config_.rank; ++rank) connect_to(rank, table[static_cast<size_t>(rank)].address, 0);
    accept_until_all(listener, nullptr);
  }

  void send_table(const std::vector<TableEntry>& table) {
    for (const UniqueFd& peer : peers_) {
      if (peer) static_cast<void>(::send(peer.get(), table.data(), table.size() * sizeof(TableEntry), MSG_NOSIGNAL));
    }
  }

  UniqueFd listen_at(const Address& address) {
    // Not blocking: who has called may be gone when it is accepted.
    UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int one = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (::bind(fd.get(), address.get(), address.length) != 0 ||
        ::listen(fd.get(), std::max(config_.size, SOMAXCONN)) != 0) {
      throw CommError(fmt::format("SocketGroup: rank {} must be able to listen at {} (got {})", config_.rank,
                                  config_.address, std::strerror(errno)));
    }
    return fd;
  }

  void connect_to(int rank, const Address& address, uint32_t port) {
    while (true) {
      UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      const Hello hello{kMagic, config_.rank, config_.size, port};
      if (connects(fd.get(), address) && ::send(fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello)) {
        set_no_delay(fd.get(), address.family());
        peers_[static_cast<size_t>(rank)] = std::move(fd);
        return;
      }
      if (steady_seconds() > deadline_s_) give_up_on({rank});
      std::this_thread::sleep_for(kRetryInterval);
    }
  }

  /// One attempt. A host that does not answer at all is left in time for another: the system itself tries for minutes.
  bool connects(int fd, const Address& address) const {
    if (::connect(fd, address.get(), address.length) == 0) return true;
    if (errno != EINPROGRESS && errno != EINTR) return false;
    const double end_s = std::min(deadline_s_, steady_seconds() + kAttempt_s);
    int error = 0;
    socklen_t length = sizeof(error);
    return wait_for(fd, POLLOUT, end_s) && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  }

  void accept_until_all(const UniqueFd& listener, std::vector<TableEntry>* table) {
    std::vector<Caller> callers;
    while (true) {
      std::vector<int> missing;
      for (int rank = config_.rank + 1; rank < config_.size; ++rank) {
        if (!peers_[static_cast<size_t>(rank)]) missing.push_back(rank);
      }
      if (missing.empty()) return;
      const double rest_s = deadline_s_ - steady_seconds();
      if (rest_s <= 0) give_up_on(missing);
      std::vector<pollfd> polled{{listener.get(), POLLIN, 0}};
      for (const Caller& caller : callers) polled.push_back({caller.fd.get(), POLLIN, 0});
      if (::poll(polled.data(), polled.size(), static_cast<int>(rest_s * 1e3) + 1) <= 0) continue;
      // One that says nothing is left waiting, and nobody waits for it.
      std::erase_if(callers, [&](Caller& caller) { return hear(caller, table); });
      if (polled[0].revents != 0) accept_one(listener, callers);
    }
  }

  static void accept_one(const UniqueFd& listener, std::vector<Caller>& callers) {
    Caller caller;
    caller.from.length = sizeof(caller.from.storage);
    caller.fd = UniqueFd(::accept4(listener.get(), reinterpret_cast<sockaddr*>(&caller.from.storage),
                                   &caller.from.length, SOCK_CLOEXEC));
    if (caller.fd) callers.push_back(std::move(caller));
  }

  /// True when all is said: the caller has been taken in, or it is none of us.
  bool hear(Caller& caller, std::vector<TableEntry>* table) {
    const ssize_t count = ::recv(caller.fd.get(), reinterpret_cast<char*>(&caller.hello) + caller.num_read,
                                 sizeof(Hello) - caller.num_read, MSG_DONTWAIT);
    if (count <= 0) return count == 0 || (errno != EAGAIN && errno != EINTR);
    caller.num_read += static_cast<size_t>(count);
    if (caller.num_read < sizeof(Hello)) return false;
    const Hello& hello = caller.hello;
    if (hello.magic != kMagic) return true;
    require(hello.size == config_.size, "SocketGroup: size must be the same on all ranks (got {} on rank {}, {} here)",
            hello.size, hello.rank, config_.size);
    require(hello.rank > config_.rank && hello.rank < config_.size && !peers_[static_cast<size_t>(hello.rank)],
            "SocketGroup: every rank must come once (got rank {} again)", hello.rank);
    set_no_delay(caller.fd.get(), caller.from.family());
    if (table != nullptr) {
      set_port(caller.from, hello.port);
      (*table)[static_cast<size_t>(hello.rank)].address = caller.from;
    }
    peers_[static_cast<size_t>(hello.rank)] = std::move(caller.fd);
    return true;
  }

  static void set_no_delay(int fd, int family) {
    const int one = 1;
    if (family != AF_UNIX) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }

  /// False when the deadline came first.
  bool wait_readable(int fd) const { return wait_for(fd, POLLIN, deadline_s_); }
  static bool wait_for(int fd, short events, double end_s) {
    while (true) {
      const double rest_s = end_s - steady_seconds();
      if (rest_s <= 0) return false;
      pollfd polled{fd, events, 0};
      if (::poll(&polled, 1, static_cast<int>(rest_s * 1e3) + 1) > 0) return true;
    }
  }

  bool receive_all(int fd, void* data, size_t num_bytes) const {
    for (size_t done = 0; done < num_bytes;) {
      if (!wait_readable(fd)) return false;
      const ssize_t count = ::recv(fd, static_cast<char*>(data) + done, num_bytes - done, MSG_DONTWAIT);
      if (count > 0) {
        done += static_cast<size_t>(count);
      } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        return false;
      }
    }
    return true;
  }

  [[noreturn]] void give_up_on(const std::vector<int>& ranks) const {
    throw Timeout(fmt::format("SocketGroup: {} {} did not start within {:g} s (noticed by rank {})",
                              ranks.size() == 1 ? "rank" : "ranks", joined(ranks), config_.timeout_s, config_.rank));
  }

  const SocketGroupConfig& config_;
  double deadline_s_;
  std::vector<UniqueFd> peers_;
};

}  // namespace

std::vector<UniqueFd> connect_ranks(const SocketGroupConfig& config) { return Rendezvous(config).run(); }

}  // namespace tangram::comm
