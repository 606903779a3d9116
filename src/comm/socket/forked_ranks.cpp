// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/socket/forked_ranks.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "core/require.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tangram/socket_group.hpp"

namespace tangram::comm {

namespace {

using Clock = std::chrono::steady_clock;

/// A folder of its own for the ranks to meet in, removed with everything in it.
class RendezvousAddress {
 public:
  RendezvousAddress() : path_((std::filesystem::temp_directory_path() / "tangram-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) {
      throw CommError(
          fmt::format("run_forked_ranks: must be able to make the folder {} (got {})", path_, std::strerror(errno)));
    }
  }
  ~RendezvousAddress() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string address() const { return "unix:" + path_; }

 private:
  std::string path_;
};

int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

/// Time at which each rank ended, written by the ranks themselves. The failure of one makes the others fail sooner than
/// the parent could notice. 0: by a signal.
class EndTimes {
 public:
  explicit EndTimes(int size) : bytes_(static_cast<size_t>(size) * sizeof(int64_t)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw CommError("run_forked_ranks: must be able to map shared memory");
    times_ = static_cast<volatile int64_t*>(memory);
  }
  ~EndTimes() { munmap(const_cast<int64_t*>(times_), bytes_); }
  volatile int64_t& of(int rank) { return times_[rank]; }

 private:
  size_t bytes_;
  volatile int64_t* times_;
};

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/// The system keeps how a child ended, even if the parent of this process had asked it not to.
class ChildStatusKept {
 public:
  ChildStatusKept() {
    struct sigaction kept = {};
    kept.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &kept, &before_);
  }
  ~ChildStatusKept() { sigaction(SIGCHLD, &before_, nullptr); }

 private:
  struct sigaction before_ = {};
};

/// The processes of the ranks, killed and collected at the end if they are still there.
class Processes {
 public:
  ~Processes() {
    for (const Process& process : running_) kill(process.id, SIGKILL);
    for (const Process& process : running_) waitpid(process.id, nullptr, 0);
  }
  void add(int rank, pid_t id) { running_.push_back({rank, id}); }

  /// Returns the code of the rank that failed first, or 0.
  int wait(EndTimes& end_times, double timeout_s) {
    int code = 0;
    int64_t failed_at = 0;
    Clock::time_point deadline = Clock::time_point::max();
    while (!running_.empty() && Clock::now() < deadline) {
      for (size_t i = 0; i < running_.size();) {
        const Process process = running_[i];
        int status = 0;
        if (waitpid(process.id, &status, WNOHANG) == 0) {
          ++i;
          continue;
        }
        running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
        if (exit_code_of(status) == 0) continue;
        if (code == 0) deadline = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
        if (code == 0 || end_times.of(process.rank) < failed_at) {
          code = exit_code_of(status);
          failed_at = end_times.of(process.rank);
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return code;
  }

 private:
  struct Process {
    int rank;
    pid_t id;
  };
  std::vector<Process> running_;
};

int run_rank(const SocketGroupConfig& config, const std::function<int(Communicator&)>& rank_main,
             const std::function<int(const std::exception&)>& on_error, EndTimes& end_times) {
  int code = 0;
  try {
    SocketGroup group(config);
    code = rank_main(group.communicator());
    end_times.of(config.rank) = now_ns();
  } catch (const std::exception& error) {
    end_times.of(config.rank) = now_ns();
    code = on_error(error);
  }
  return code;
}

}  // namespace

int run_forked_ranks(int size, const std::function<int(Communicator&)>& rank_main,
                     const std::function<int(const std::exception&)>& on_error, double timeout_s) {
  require(size >= 1, "run_forked_ranks: size must be positive (got {})", size);
  const RendezvousAddress meeting_place;
  std::fflush(nullptr);  // or each rank would print again what is buffered
  const pid_t parent = getpid();
  EndTimes end_times(size);
  const ChildStatusKept child_status;
  Processes processes;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t process = fork();
    if (process < 0) {
      throw CommError(fmt::format("run_forked_ranks: must be able to start {} processes (got {} at {})", size,
                                  std::strerror(errno), rank));
    }
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(128 + SIGKILL);
      const int code = run_rank({rank, size, meeting_place.address(), timeout_s}, rank_main, on_error, end_times);
      std::fflush(nullptr);
      _exit(code);  // not the parent's destructors
    }
    processes.add(rank, process);
  }
  return processes.wait(end_times, timeout_s > 0 ? timeout_s : Env::get().timeout_s);
}

}  // namespace tangram::comm
