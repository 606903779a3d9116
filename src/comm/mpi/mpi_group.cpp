// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mpi_group.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/mpi/beacon.hpp"
#include "comm/mpi/mpi_api.hpp"
#include "comm/mpi/mpi_transport.hpp"
#include "core/require.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

constexpr std::chrono::milliseconds kLookInterval{20};

/// The outcome of MPI_Init, shared with the thread that is in it.
struct Start {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int code = MPI_SUCCESS;
  int provided = MPI_THREAD_SINGLE;
};

/// Which processes of this host have come so far. Those that came and gave up since are not the ones to blame.
class Arrivals {
 public:
  Arrivals(const comm::Beacon* beacon, int size) : beacon_(beacon), came_(static_cast<size_t>(size), 0) {}

  void look() {
    for (size_t rank = 0; rank < came_.size(); ++rank) {
      if (!came_[rank]) came_[rank] = beacon_ == nullptr || beacon_->sees(static_cast<int>(rank));
    }
  }
  std::string missing() const {
    std::string ranks;
    for (size_t rank = 0; rank < came_.size(); ++rank) {
      if (!came_[rank]) ranks += fmt::format("{}rank {}", ranks.empty() ? "" : ", ", rank);
    }
    return ranks.empty() ? "some rank" : ranks;
  }

 private:
  const comm::Beacon* beacon_;
  std::vector<char> came_;
};

/// MPI_Init returns when all processes have called it. It has no deadline, so it runs in a thread that can be left.
int start_mpi(const comm::MpiApi& api, const comm::Beacon* beacon, int size, double timeout_s) {
  const auto start = std::make_shared<Start>();
  std::thread([start, &api] {
    int provided = MPI_THREAD_SINGLE;
    const int code = api.init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    const std::lock_guard lock(start->mutex);
    start->code = code;
    start->provided = provided;
    start->done = true;
    start->changed.notify_all();
  }).detach();
  Arrivals arrivals(beacon, size);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  std::unique_lock lock(start->mutex);
  while (!start->changed.wait_for(lock, kLookInterval, [&] { return start->done; })) {
    arrivals.look();
    if (std::chrono::steady_clock::now() < deadline) continue;
    throw Timeout(fmt::format("MPI_Init: {} did not start within {:g} s", arrivals.missing(), timeout_s));
  }
  api.check(start->code, "MPI_Init_thread");
  return start->provided;
}

double checked_timeout(double timeout_s) {
  require(std::isfinite(timeout_s) && timeout_s >= 0, "MpiGroup: timeout_s must be finite and not negative (got {})",
          timeout_s);
  return timeout_s == 0 ? Env::get().timeout_s : timeout_s;
}

}  // namespace

class MpiGroup::Impl {
 public:
  explicit Impl(double timeout_s) : api(comm::MpiApi::get()) {
    timeout_s = checked_timeout(timeout_s);
    const Env::MpiLaunch launch = Env::mpi_launch();
    int initialized = 0, provided = MPI_THREAD_SINGLE;
    api.check(api.initialized(&initialized), "MPI_Initialized");
    if (initialized) {
      // Peers may come to this line at any time, so that the lack of a beacon says nothing.
      api.check(api.query_thread(&provided), "MPI_Query_thread");
    } else {
      if (launch.local_size == launch.size && !launch.job.empty()) {
        beacon = std::make_unique<comm::Beacon>(launch.job, launch.rank);
      }
      provided = start_mpi(api, beacon.get(), launch.size, timeout_s);
      owns_mpi = true;
    }
    if (provided < MPI_THREAD_SERIALIZED) {
      throw NotAvailable(fmt::format("MPI: needs MPI_THREAD_SERIALIZED (got level {})", provided));
    }
    auto owned = std::make_unique<comm::MpiTransport>(api, beacon.get(), timeout_s);
    transport = owned.get();
    communicator = std::make_unique<comm::ProgressCommunicator>(std::move(owned));
  }

  ~Impl() {
    communicator->stop();
    const bool failed = transport->has_failed();
    communicator.reset();
    beacon.reset();  // whoever waits for us now waits in vain
    if (owns_mpi && !failed) api.finalize();
  }

  const comm::MpiApi& api;
  bool owns_mpi = false;
  std::unique_ptr<comm::Beacon> beacon;
  comm::MpiTransport* transport = nullptr;  // owned by the communicator
  std::unique_ptr<comm::ProgressCommunicator> communicator;
};

std::string MpiGroup::unavailable_reason() {
  try {
    comm::MpiApi::get();
  } catch (const NotAvailable& error) {
    return error.what();
  }
  return {};
}

bool MpiGroup::is_launched() { return !Env::mpi_launch().job.empty(); }

MpiGroup::MpiGroup(double timeout_s) : impl_(std::make_unique<Impl>(timeout_s)) {}
MpiGroup::~MpiGroup() = default;
MpiGroup::MpiGroup(MpiGroup&&) noexcept = default;
MpiGroup& MpiGroup::operator=(MpiGroup&&) noexcept = default;

Communicator& MpiGroup::communicator() { return *impl_->communicator; }

}  // namespace tangram
