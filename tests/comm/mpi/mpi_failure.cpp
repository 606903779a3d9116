// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One rank of a group in which rank 1 fails as the first argument says: kill, stop, silent, leave, throw, absent,
// stop_in_init. The others print what they threw as `SURVIVOR <rank> <type> <text>`. Started and judged by
// run_mpi_failure.py.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/exchange_tables.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tangram/mpi_group.hpp"

namespace {

using tangram::Communicator;

constexpr int kVictim = 1;

void report(int rank, const char* type, const char* text) {
  std::printf("SURVIVOR %d %s %s\n", rank, type, text);
  std::fflush(stdout);
}

void sleep_long() { std::this_thread::sleep_for(std::chrono::seconds(120)); }

void fail_as(const std::string& mode) {
  if (mode == "kill") raise(SIGKILL);
  if (mode == "stop") raise(SIGSTOP);
  if (mode == "silent") sleep_long();
  if (mode == "throw") throw std::runtime_error("no luck");
}

/// Casts large rows to all others, so that a failure in the middle finds messages under way.
void cast_to_all(Communicator& comm, const char* label) {
  constexpr int64_t kRows = 5000;
  const tangram::HostTensor src = tangram::testing::make_filled(tangram::DType::kFloat32, kRows, 1, 64, comm.rank(), 0);
  tangram::HostTensor dst(tangram::DType::kFloat32, kRows * comm.size(), 1, 64);
  tangram::Exchange exchange;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    exchange.sends.push_back({peer, {0, kRows}, kRows * comm.rank()});
    exchange.recvs.push_back({peer, {kRows * peer, kRows * (peer + 1)}, 0});
  }
  const tangram::CastTensor tensors[] = {{src, dst}};
  comm.group_cast(exchange, tensors, label)->wait();
}

void run(const std::string& mode, Communicator& comm) {
  cast_to_all(comm, "kv stage 1");
  if (comm.rank() == kVictim) {
    if (mode == "leave") return;
    fail_as(mode);
  }
  cast_to_all(comm, "kv stage 2");
}

}  // namespace

int main(int, char** argv) {
  const std::string mode = argv[1];
  const int rank = tangram::Env::mpi_launch().rank;
  std::printf("PID %d %d\n", rank, static_cast<int>(getpid()));
  std::fflush(stdout);
  if (mode == "absent" && rank == kVictim) sleep_long();
  if (mode == "stop_in_init" && rank == kVictim) {
    // While it waits inside for rank 2.
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      raise(SIGSTOP);
    }).detach();
  }
  if (mode == "stop_in_init" && rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  try {
    tangram::MpiGroup group;
    try {
      run(mode, group.communicator());
    } catch (const std::exception& error) {
      group.communicator().abort(error.what());
      throw;
    }
  } catch (const tangram::Timeout& error) {
    if (rank != kVictim) report(rank, "Timeout", error.what());
    std::_Exit(3);
  } catch (const tangram::CommError& error) {
    if (rank != kVictim) report(rank, "CommError", error.what());
    std::_Exit(3);
  } catch (const std::exception& error) {
    if (rank != kVictim) report(rank, "other", error.what());
    std::_Exit(4);
  }
  return 0;
}
