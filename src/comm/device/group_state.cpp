// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/group_state.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cmath>

#include "comm/device/failure_text.hpp"
#include "comm/fingerprint_text.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

/// Most passes whose numbers fit into the words of kernels. Numbers are reused: a program makes passes as long as it
/// lives.
constexpr size_t kMaxPasses = 4095;

double checked_timeout(double timeout_s) {
  require(std::isfinite(timeout_s) && timeout_s >= 0,
          "make_device_communicator: timeout_s must be finite and not negative (got {})", timeout_s);
  return timeout_s == 0 ? Env::get().timeout_s : timeout_s;
}

RankNames checked_names(const DeviceCommunicatorConfig& config, int size) {
  require(config.rank_names.empty() || std::ssize(config.rank_names) == size,
          "make_device_communicator: rank_names must be none or one for each rank (got {} for {})",
          config.rank_names.size(), size);
  require(config.node_names.empty() || std::ssize(config.node_names) == size,
          "make_device_communicator: node_names must be none or one for each rank (got {} for {})",
          config.node_names.size(), size);
  return {config.rank_names, config.node_names};
}

}  // namespace

GroupState::GroupState(Communicator& control, const DeviceCommunicatorConfig& config)
    : control_(control),
      rank_(control.rank()),
      size_(control.size()),
      timeout_s_(checked_timeout(config.timeout_s)),
      names_(checked_names(config, control.size())),
      control_block_(control, timeout_s_),
      links_(control_block_.is_linked() ? std::make_unique<ControlLinks>(control_block_, control, timeout_s_)
                                        : nullptr),
      agreement_(control_block_, rank_, timeout_s_, names_.numbers, [this] { check(); }),
      notes_(timeout_s_),
      watchdog_(control_block_, rank_, timeout_s_,
                [this](const cuda::WaitFailure& wait, double waited_s) { note_wait(wait, waited_s); }) {
  control_block_.prepare_once(
      [](void* data, size_t bytes) {
        cuda::check(cudaHostRegister(data, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable),
                    "cudaHostRegister");
        void* device = nullptr;
        cuda::check(cudaHostGetDevicePointer(&device, data, 0), "cudaHostGetDevicePointer");
        if (device != data) throw NotAvailable("GroupState: kernels must reach host memory by the host's addresses");
      },
      [](void* data) { static_cast<void>(cudaHostUnregister(data)); });
}

int GroupState::add_pass(std::string_view label) {
  const std::lock_guard lock(mutex_);
  const size_t number = num_passes_++ % kMaxPasses;
  if (number == passes_.size()) {
    passes_.emplace_back(label);
  } else {
    passes_[number] = label;
  }
  return static_cast<int>(number);
}

void GroupState::check() {
  agreement_.look();
  const cuda::ControlBlockRow& row = control_block_.row(rank_);
  // What a kernel waited for says more than what the host noticed.
  uint64_t word = HostControlBlock::load(row.report);
  if (word == 0) word = HostControlBlock::load(row.host_abort);
  if (word == 0) return;
  const cuda::WaitFailure failure = cuda::unpack(word);
  const std::string reason = failure.kind == cuda::WaitKind::kCall ? call_text(failure, failure.reporter, failure.peer)
                                                                   : std::string(control_block_.row(failure.peer).text);
  const std::lock_guard lock(mutex_);
  throw_failure(failure, failure_text(failure, passes_, timeout_s_, reason, names_));
}

std::string GroupState::call_text(const cuda::WaitFailure& failure, int reporter, int peer) const {
  const cuda::CallTags tags = cuda::call_tags(failure);
  const auto own = control_block_.fingerprint(reporter, tags.reporter),
             other = control_block_.fingerprint(peer, tags.peer);
  const int ranks[] = {names_.number(reporter), names_.number(peer)};
  const CallFingerprint fingerprint[] = {own.value_or(CallFingerprint()), other.value_or(CallFingerprint())};
  const std::string text = differing_fields(fingerprint, ranks);
  // Empty if the graph was captured many calls ago.
  return text.empty() ? fmt::format("the calls of ranks {} and {} differ", ranks[0], ranks[1]) : text;
}

void GroupState::note_wait(const cuda::WaitFailure& wait, double waited_s) {
  if (waited_s < last_waited_s_) notes_.reset();
  last_waited_s_ = waited_s;
  if (!notes_.is_due(waited_s)) return;
  std::string operation;
  {
    const std::lock_guard lock(mutex_);
    operation = operation_text(wait, passes_);
  }
  notes_.note(operation, names_.text(wait.peer), names_.number(rank_), waited_s);
}

void GroupState::give_up(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  control_block_.give_up(rank_, reason);
}

void GroupState::count(int64_t rows_sent, int64_t bytes_sent, int64_t rows_received, int64_t bytes_received) {
  const std::lock_guard lock(mutex_);
  counters_.operations += 1;
  counters_.rows_sent += rows_sent;
  counters_.bytes_sent += bytes_sent;
  counters_.rows_received += rows_received;
  counters_.bytes_received += bytes_received;
}

TrafficCounters GroupState::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void GroupState::reset_counters() {
  const std::lock_guard lock(mutex_);
  counters_ = {};
}

}  // namespace tangram::comm
