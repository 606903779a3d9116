// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/process_group.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tangram/error.hpp"

namespace tangram::testing {

namespace {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t pid = -1;
  int pipe = -1;
};

void report(int pipe, const char* type, const char* text) {
  const std::string line = std::string(type) + "\n" + text;
  static_cast<void>(!::write(pipe, line.data(), line.size()));
}

[[noreturn]] void run_child(int rank, int pipe, const std::function<void(int)>& rank_main) {
  try {
    rank_main(rank);
  } catch (const Timeout& error) {
    report(pipe, "Timeout", error.what());
  } catch (const CommError& error) {
    report(pipe, "CommError", error.what());
  } catch (const InvalidArgument& error) {
    report(pipe, "InvalidArgument", error.what());
  } catch (const std::exception& error) {
    report(pipe, "other", error.what());
  }
  std::fflush(nullptr);
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

void read_report(int pipe, Outcome& outcome) {
  std::string text;
  char buffer[1024];
  for (ssize_t count = 0; (count = ::read(pipe, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  const size_t newline = text.find('\n');
  if (newline == std::string::npos) return;
  outcome.error_type = text.substr(0, newline);
  outcome.error_text = text.substr(newline + 1);
}

}  // namespace

std::vector<Outcome> run_processes(int size, const std::function<void(int rank)>& rank_main, double limit_s) {
  const auto begin = Clock::now();
  const auto elapsed_s = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::vector<Child> children(static_cast<size_t>(size));
  std::fflush(nullptr);  // what is buffered now is the parent's to write
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    const pid_t pid = ::fork();
    if (pid == 0) run_child(rank, ends[1], rank_main);
    ::close(ends[1]);
    children[static_cast<size_t>(rank)] = {pid, ends[0]};
  }
  std::vector<Outcome> outcomes(children.size());
  std::vector<bool> is_running(children.size(), true);
  for (size_t num_running = children.size(); num_running > 0 && elapsed_s() < limit_s;) {
    for (size_t rank = 0; rank < children.size(); ++rank) {
      int status = 0;
      const pid_t pid = children[rank].pid;
      if (!is_running[rank] || ::waitpid(pid, &status, WNOHANG | WUNTRACED) != pid) continue;
      is_running[rank] = false;
      --num_running;
      if (WIFSTOPPED(status)) continue;
      outcomes[rank].ended = true;
      outcomes[rank].exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      outcomes[rank].seconds = elapsed_s();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (size_t rank = 0; rank < children.size(); ++rank) {
    if (!outcomes[rank].ended) {
      ::kill(children[rank].pid, SIGKILL);
      ::waitpid(children[rank].pid, nullptr, 0);
    }
    read_report(children[rank].pipe, outcomes[rank]);
    ::close(children[rank].pipe);
  }
  return outcomes;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "tangram_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tangram::testing
