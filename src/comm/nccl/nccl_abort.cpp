// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/nccl_abort.hpp"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace tangram::comm {

namespace {

struct Ending {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

}  // namespace

bool abort_or_leave(const NcclApi& api, NcclApi::Comm comm, double limit_s) noexcept {
  try {
    const auto ending = std::make_shared<Ending>();
    // What the thread calls must outlive it, and the caller may end first.
    std::thread([ending, abort = api.comm_abort, comm] {
      static_cast<void>(abort(comm));
      const std::lock_guard lock(ending->mutex);
      ending->done = true;
      ending->changed.notify_all();
    }).detach();
    std::unique_lock lock(ending->mutex);
    return ending->changed.wait_for(lock, std::chrono::duration<double>(limit_s), [&] { return ending->done; });
  } catch (...) {  // no thread could be made: what is left of the communicator ends with the process
    return false;
  }
}

}  // namespace tangram::comm
