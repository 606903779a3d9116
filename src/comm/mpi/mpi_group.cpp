// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mpi_group.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
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

/// Which processes of this host have come so far, and which of those still run.
class ReadyFlags {
 public:
  ReadyFlags(comm::Beacon& beacon, const Env::MpiLaunch& launch, double timeout_s)
      : beacon_(beacon), launch_(launch), timeout_s_(timeout_s), came_(static_cast<size_t>(launch.size), 0) {}

  void look() {
    for (size_t rank = 0; rank < came_.size(); ++rank) {
      if (!came_[rank]) came_[rank] = beacon_.sees(static_cast<int>(rank));
    }
    beacon_.listen();
    const double now_s = comm::steady_seconds();
    if (now_s - asked_s_ < timeout_s_ / kAsksPerTimeout) return;
    asked_s_ = now_s;
    beacon_.ask(launch_.size);
  }
  /// Finding of another rank that gave up first. It must not be looked for itself.
  const std::optional<std::string>& told() const { return beacon_.told(); }

  /// `rank 1 did not start`: the ranks that never came, or else the ranks that came and do not answer any more.
  std::string blame() const {
    const double since_s = comm::steady_seconds() - kFreshShare * timeout_s_;
    std::string missing, silent;
    for (int rank = 0; rank < launch_.size; ++rank) {
      std::string* ranks = nullptr;
      if (!came_[static_cast<size_t>(rank)]) {
        ranks = &missing;
      } else if (rank != launch_.rank && beacon_.heard_s(rank) < since_s) {
        ranks = &silent;
      }
      if (ranks != nullptr) *ranks += fmt::format("{}rank {}", ranks->empty() ? "" : ", ", rank);
    }
    if (!missing.empty()) return missing + " did not start";
    if (!silent.empty()) return silent + " came, but did not answer";
    return "all ranks came and answer, but it did not end";
  }

 private:
  static constexpr double kAsksPerTimeout = 16;
  static constexpr double kFreshShare = 0.5;

  comm::Beacon& beacon_;
  const Env::MpiLaunch& launch_;
  double timeout_s_;
  double asked_s_ = 0;
  std::vector<char> came_;
};

/// MPI_Init returns when all processes have called it. It has no deadline, so it runs in a thread that can be left.
/// Without a beacon missing ranks are not known. The first rank that gives up tells the others whom it blames.
int start_mpi(const comm::MpiApi& api, comm::Beacon* beacon, const Env::MpiLaunch& launch, double timeout_s) {
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
  std::optional<ReadyFlags> ready_flags;
  if (beacon != nullptr && beacon->works()) ready_flags.emplace(*beacon, launch, timeout_s);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  std::unique_lock lock(start->mutex);
  while (!start->changed.wait_for(lock, kLookInterval, [&] { return start->done; })) {
    if (ready_flags) ready_flags->look();
    if (ready_flags && ready_flags->told()) throw Timeout(*ready_flags->told());
    if (std::chrono::steady_clock::now() < deadline) continue;
    const std::string blame =
        ready_flags ? ready_flags->blame() : "some rank, which cannot be known from this host, did not start";
    const std::string text =
        fmt::format("MPI_Init: {} within {:g} s (noticed by rank {})", blame, timeout_s, launch.rank);
    if (ready_flags) beacon->tell(launch.size, text);
    throw Timeout(text);
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
      provided = start_mpi(api, beacon.get(), launch, timeout_s);
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
    beacon.reset();  // ranks that wait for us now wait in vain
    if (owns_mpi && !failed) api.finalize();
  }

  const MadeHere made_here;
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
MpiGroup::~MpiGroup() { leave_to_parent(impl_); }  // NOTE [after a fork]
MpiGroup::MpiGroup(MpiGroup&&) noexcept = default;
MpiGroup& MpiGroup::operator=(MpiGroup&&) noexcept = default;

Communicator& MpiGroup::communicator() { return *impl_->communicator; }

}  // namespace tangram
