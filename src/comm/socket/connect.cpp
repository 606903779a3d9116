// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/socket/connect.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>

#include "comm/progress_communicator.hpp"
#include "comm/socket/address.hpp"
#include "comm/socket/handshake.hpp"
#include "core/interrupt.hpp"
#include "core/joined.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

constexpr std::chrono::milliseconds kRetryInterval{5};
constexpr double kAttempt_s = 2;
/// Other ranks wait this much longer for rank 0's table, so that it is rank 0 that says who is missing.
constexpr double kTableGrace_s = 1;
/// Longest folder whose sockets, `/rank_N`, have paths shorter than sockaddr_un::sun_path.
constexpr size_t kLongestFolder = 90;
/// Callers, beside the ranks, that are left waiting: more than that push out the oldest.
constexpr size_t kMaxStrangers = 64;

/// Who has connected, and what it has said so far. See NOTE [handshake].
struct Caller {
  UniqueFd fd;
  Address from;
  Nonce nonce = new_nonce();
  Hello hello;
  Digest proof = {};
  size_t num_read = 0;  // of both
};

/// Entry that rank 0 sends to a rank about another: its address, or, for the rank itself, whether all came.
struct TableEntry {
  Address address;
  int32_t missing = 0;
};

class Rendezvous {
 public:
  explicit Rendezvous(const SocketGroupConfig& config)
      : config_(config),
        deadline_s_(steady_seconds() + config.setup_timeout_s),
        peers_(static_cast<size_t>(config.size)) {}

  std::vector<UniqueFd> run() {
    const std::string_view address = config_.address;
    if (config_.size == 1) return std::move(peers_);
    if (address.starts_with("unix:")) {
      rendezvous_folder(std::string(address.substr(5)));
    } else if (const size_t colon = address.rfind(':'); address.starts_with("tcp:") && colon > 4) {
      rendezvous_tcp(tcp_address(std::string(address.substr(4, colon - 4)), std::string(address.substr(colon + 1))));
    } else {
      require(false, "SocketGroup: address must be unix:FOLDER or tcp:HOST:PORT (got {})", address);
    }
    return std::move(peers_);
  }

 private:
  void rendezvous_folder(const std::string& given) {
    // The system takes short paths only, but a folder may lie deep: then it is reached by a descriptor.
    UniqueFd opened;
    std::string folder = given;
    if (folder.size() > kLongestFolder) {
      opened = UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      if (!opened) {
        throw CommError(fmt::format("SocketGroup: rank {} must be able to open the folder {} (got {})", config_.rank,
                                    folder, std::strerror(errno)));
      }
      folder = fmt::format("/proc/self/fd/{}", opened.get());
    }
    const auto path = [&](int rank) { return fmt::format("{}/rank_{}", folder, rank); };
    ::unlink(path(config_.rank).c_str());
    const UniqueFd listener = listen_at(unix_address(path(config_.rank)));
    for (int rank = 0; rank < config_.rank; ++rank) connect_to(rank, unix_address(path(rank)));
    accept_until_all(listener, nullptr);
    ::unlink(path(config_.rank).c_str());
  }

  void rendezvous_tcp(const Address& root) {
    if (config_.rank == 0) {
      const UniqueFd listener = config_.listener >= 0 ? UniqueFd(config_.listener) : listen_at(root);
      ::fcntl(listener.get(), F_SETFL, ::fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
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
    UniqueFd listener;  // where the way to rank 0 begins, and on no other interface
    connect_to(0, root, [&](int fd) {
      Address beside = own_address(fd);
      beside.set_port(0);
      listener = listen_at(beside);
      return own_address(listener.get()).port();
    });
    deadline_s_ += kTableGrace_s;
    std::vector<TableEntry> table(static_cast<size_t>(config_.size));
    if (!receive_all(peers_[0].get(), table.data(), table.size() * sizeof(TableEntry))) give_up_on({0});
    if (table[0].missing != 0) {
      throw Timeout(fmt::format("SocketGroup: not all ranks came to rank 0 within {:g} s", config_.setup_timeout_s));
    }
    for (int rank = 1; rank < config_.rank; ++rank) connect_to(rank, table[static_cast<size_t>(rank)].address);
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

  /// `listen`, if given, makes what the rank listens at, given the connection, and returns its port.
  void connect_to(int rank, const Address& address, const std::function<uint32_t(int fd)>& listen = {}) {
    while (true) {
      UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (connects(fd.get(), address)) {
        set_no_delay(fd.get(), address.family());
        if (greet(fd.get(), rank, listen ? listen(fd.get()) : 0)) {
          peers_[static_cast<size_t>(rank)] = std::move(fd);
          return;
        }
      }
      if (steady_seconds() > deadline_s_) give_up_on({rank});
      interrupts_.check();
      std::this_thread::sleep_for(kRetryInterval);
    }
  }

  /// True when `rank` is at the other end and has taken this rank in. See NOTE [handshake].
  bool greet(int fd, int rank, uint32_t port) {
    const Hello hello{Hello::kMagic, config_.rank, config_.size, port, new_nonce()};
    Challenge challenge;
    if (!send_all(fd, hello) || !receive_all(fd, &challenge, sizeof(challenge))) return false;
    if (!same_digest(challenge.proof, prove(config_.secret, Side::kAccepts, rank, hello, challenge.nonce))) {
      met_others_ = true;
      return false;
    }
    const Digest proof = prove(config_.secret, Side::kConnects, rank, hello, challenge.nonce);
    Welcome welcome;
    if (!send_all(fd, proof) || !receive_all(fd, &welcome, sizeof(welcome))) return false;
    if (welcome.verdict == Welcome::kOtherSize) refuse_size(welcome.size, rank);
    if (welcome.verdict == Welcome::kTwice) refuse_twice(config_.rank);
    return true;
  }

  /// One attempt. A host that does not answer at all is left in time for another: the system itself tries for minutes.
  bool connects(int fd, const Address& address) {
    if (::connect(fd, address.get(), address.length) == 0) return !leads_to_itself(fd);
    if (errno != EINPROGRESS && errno != EINTR) return false;
    const double end_s = std::min(deadline_s_, steady_seconds() + kAttempt_s);
    int error = 0;
    socklen_t length = sizeof(error);
    return wait_for(fd, POLLOUT, end_s) && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0 &&
           !leads_to_itself(fd);
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
      interrupts_.check();
      if (::poll(polled.data(), polled.size(), poll_ms(rest_s)) <= 0) continue;
      // A silent caller stays connected, and no rank waits for it.
      std::erase_if(callers, [&](Caller& caller) { return hear(caller, table); });
      if (polled[0].revents != 0) accept_one(listener, callers);
    }
  }

  void accept_one(const UniqueFd& listener, std::vector<Caller>& callers) const {
    Caller caller;
    caller.from.length = sizeof(caller.from.storage);
    caller.fd = UniqueFd(::accept4(listener.get(), reinterpret_cast<sockaddr*>(&caller.from.storage),
                                   &caller.from.length, SOCK_CLOEXEC));
    if (!caller.fd) return;
    if (callers.size() >= static_cast<size_t>(config_.size) + kMaxStrangers) callers.erase(callers.begin());
    callers.push_back(std::move(caller));
  }

  /// True when all is said: the caller has been taken in, or it is none of us and forgotten.
  bool hear(Caller& caller, std::vector<TableEntry>* table) {
    while (true) {
      const bool says_hello = caller.num_read < sizeof(Hello);
      char* data = says_hello ? reinterpret_cast<char*>(&caller.hello) : reinterpret_cast<char*>(&caller.proof);
      const size_t done = says_hello ? caller.num_read : caller.num_read - sizeof(Hello);
      const size_t wanted = says_hello ? sizeof(Hello) : sizeof(Digest);
      const ssize_t count = ::recv(caller.fd.get(), data + done, wanted - done, MSG_DONTWAIT);
      if (count <= 0) return count == 0 || (errno != EAGAIN && errno != EINTR);
      caller.num_read += static_cast<size_t>(count);
      if (done + static_cast<size_t>(count) < wanted) continue;
      if (!says_hello) return take_in(caller, table);
      if (caller.hello.magic != Hello::kMagic) return true;
      const Challenge challenge{caller.nonce, proof_of(caller, Side::kAccepts)};
      if (!send_all(caller.fd.get(), challenge)) return true;
    }
  }

  Digest proof_of(const Caller& caller, Side side) const {
    return prove(config_.secret, side, config_.rank, caller.hello, caller.nonce);
  }

  /// Only what knows the secret can be wrong about the job, and end it.
  bool take_in(Caller& caller, std::vector<TableEntry>* table) {
    if (!same_digest(caller.proof, proof_of(caller, Side::kConnects))) {
      met_others_ = true;
      return true;
    }
    const Hello& hello = caller.hello;
    const bool same_size = hello.size == config_.size;
    const bool is_new =
        same_size && hello.rank > config_.rank && hello.rank < config_.size && !peers_[static_cast<size_t>(hello.rank)];
    const uint32_t verdict = is_new ? Welcome::kTaken : same_size ? Welcome::kTwice : Welcome::kOtherSize;
    const bool told = send_all(caller.fd.get(), Welcome{verdict, config_.size});
    if (!same_size) refuse_size(hello.size, hello.rank);
    if (!is_new) refuse_twice(hello.rank);
    if (!told) return true;  // gone meanwhile
    set_no_delay(caller.fd.get(), caller.from.family());
    if (table != nullptr) {
      caller.from.set_port(hello.port);
      (*table)[static_cast<size_t>(hello.rank)].address = caller.from;
    }
    peers_[static_cast<size_t>(hello.rank)] = std::move(caller.fd);
    return true;
  }

  [[noreturn]] void refuse_size(int size, int rank) const {
    throw InvalidArgument(fmt::format("SocketGroup: size must be the same on all ranks (got {} on rank {}, {} here)",
                                      size, rank, config_.size));
  }
  [[noreturn]] static void refuse_twice(int rank) {
    throw InvalidArgument(fmt::format("SocketGroup: every rank must come once (got rank {} again)", rank));
  }

  /// Messages of a handshake fit into the buffer of any socket at once.
  template <class Message>
  static bool send_all(int fd, const Message& message) {
    return ::send(fd, &message, sizeof(message), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(message));
  }

  static void set_no_delay(int fd, int family) {
    const int one = 1;
    if (family != AF_UNIX) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }

  /// False when the deadline came first.
  bool wait_readable(int fd) { return wait_for(fd, POLLIN, deadline_s_); }
  bool wait_for(int fd, short events, double end_s) {
    while (true) {
      const double rest_s = end_s - steady_seconds();
      if (rest_s <= 0) return false;
      pollfd polled{fd, events, 0};
      if (::poll(&polled, 1, poll_ms(rest_s)) > 0) return true;
      interrupts_.check();
    }
  }

  /// Until the deadline, or the next look for an interrupt.
  static int poll_ms(double rest_s) {
    return static_cast<int>(std::min(rest_s * 1e3 + 1, static_cast<double>(kInterruptInterval.count())));
  }

  bool receive_all(int fd, void* data, size_t num_bytes) {
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
    throw Timeout(fmt::format("SocketGroup: {} {} did not start within {:g} s (noticed by rank {}){}",
                              ranks.size() == 1 ? "rank" : "ranks", joined(ranks), config_.setup_timeout_s,
                              config_.rank,
                              met_others_ ? "; others were met that do not know the secret of this job" : ""));
  }

  const SocketGroupConfig& config_;
  double deadline_s_;
  std::vector<UniqueFd> peers_;
  bool met_others_ = false;
  InterruptClock interrupts_;
};

}  // namespace

std::vector<UniqueFd> connect_ranks(const SocketGroupConfig& config) { return Rendezvous(config).run(); }

}  // namespace tangram::comm
