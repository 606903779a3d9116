// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/local_group.hpp"

#include <cmath>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/local/local_control_block.hpp"
#include "comm/progress_communicator.hpp"
#include "comm/row_moves.hpp"
#include "core/require.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace comm {
namespace {

class LocalTransport final : public Transport {
 public:
  LocalTransport(LocalControlBlock& control_block, int rank) : control_block_(control_block), rank_(rank) {}

  Caller caller() const override { return {rank_, control_block_.size()}; }
  std::string_view name() const override { return "local"; }

  void execute(Operation& operation, double& started_s) override {
    control_block_.meet(rank_, operation, [&](std::span<const Operation* const> peers) {
      started_s = steady_seconds();
      receive_rows(operation, rank_, control_block_.size(), [&](int peer, size_t piece_idx, size_t tensor_idx) {
        const Operation& other = *peers[static_cast<size_t>(peer)];
        const RowCopy& piece = pieces_of(other.outgoing, rank_)[piece_idx];
        return slice_rows(other.sources[tensor_idx], piece.rows);
      });
    });
  }

  void abort(std::string_view reason) noexcept override { control_block_.abort(rank_, reason); }

 private:
  LocalControlBlock& control_block_;
  const int rank_;
};

double checked_timeout(double timeout_s) {
  require(std::isfinite(timeout_s) && timeout_s >= 0, "LocalGroup: timeout_s must be finite and not negative (got {})",
          timeout_s);
  return timeout_s == 0 ? Env::get().timeout_s : timeout_s;
}

int checked_size(int size) {
  require(size >= 1, "LocalGroup: size must be positive (got {})", size);
  return size;
}

}  // namespace
}  // namespace comm

class LocalGroup::Impl {
 public:
  Impl(int size, double timeout_s) : control_block(comm::checked_size(size), comm::checked_timeout(timeout_s)) {
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(
          std::make_unique<comm::ProgressCommunicator>(std::make_unique<comm::LocalTransport>(control_block, rank)));
    }
  }
  ~Impl() { control_block.abort(0, "the group was destroyed"); }

  const MadeHere made_here;
  comm::LocalControlBlock control_block;
  std::vector<std::unique_ptr<comm::ProgressCommunicator>> ranks;
};

LocalGroup::LocalGroup(int size, double timeout_s) : impl_(std::make_unique<Impl>(size, timeout_s)) {}
LocalGroup::~LocalGroup() { leave_to_parent(impl_); }  // NOTE [after a fork]
LocalGroup::LocalGroup(LocalGroup&&) noexcept = default;
LocalGroup& LocalGroup::operator=(LocalGroup&&) noexcept = default;

int LocalGroup::size() const { return impl_->control_block.size(); }

Communicator& LocalGroup::communicator(int rank) {
  require(rank >= 0 && rank < size(), "LocalGroup: rank must lie in [0, {}) (got {})", size(), rank);
  return *impl_->ranks[static_cast<size_t>(rank)];
}

void LocalGroup::leave(int rank) {
  require(rank >= 0 && rank < size(), "LocalGroup: rank must lie in [0, {}) (got {})", size(), rank);
  impl_->ranks[static_cast<size_t>(rank)]->drain();
  impl_->control_block.leave(rank);
}

void run_local_ranks(int cp_size, const std::function<void(Communicator&)>& rank_main, double timeout_s) {
  LocalGroup group(cp_size, timeout_s);
  std::mutex mutex;
  std::exception_ptr first_error;
  bool first_about_peers = false;
  const auto run_rank = [&](int rank) {
    Communicator& communicator = group.communicator(rank);
    // A complaint about a peer may come before the error of that peer, which has told of it first: the error counts.
    const auto record = [&](bool about_peers) {
      const std::lock_guard lock(mutex);
      if (first_error != nullptr && (about_peers || !first_about_peers)) return;
      first_error = std::current_exception();
      first_about_peers = about_peers;
    };
    try {
      rank_main(communicator);
    } catch (const std::exception& error) {
      record(dynamic_cast<const CommError*>(&error) != nullptr || dynamic_cast<const Timeout*>(&error) != nullptr);
      communicator.abort(error.what());
    } catch (...) {
      record(false);
      communicator.abort("unknown exception");
    }
    group.leave(rank);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < cp_size; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (first_error != nullptr) std::rethrow_exception(first_error);
}

}  // namespace tangram
