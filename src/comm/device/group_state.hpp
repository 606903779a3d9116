// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// GroupState: common host state of the device transports: names of passes, counters, and the control block through
// which hosts and kernels report failures.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/control_block_agreement.hpp"
#include "comm/device/control_links.hpp"
#include "comm/device/failure_text.hpp"
#include "comm/device/host_control_block.hpp"
#include "core/log.hpp"
#include "cuda/wait_context.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// Thread-safe, except for the constructor.
class GroupState {
 public:
  /// Collective. Throws InvalidArgument unless timeout_s is finite and not negative and rank_names are none or one for
  /// each rank.
  GroupState(Communicator& control, const DeviceCommunicatorConfig& config);

  Communicator& control() const { return control_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  double timeout_s() const { return timeout_s_; }

  HostControlBlock& control_block() { return control_block_; }
  /// The control block's rows as kernels reach them.
  cuda::ControlBlockRow* device_control_block() const { return &control_block_.row(0); }

  /// The number of the next pass, from 0, in turn up to 4,094; the same on all ranks, which prepare the same passes.
  int add_pass(std::string_view label);

  /// Agreement on an object that all ranks are about to make, without a barrier.
  ControlBlockAgreement& agreement() { return agreement_; }

  /// Throws what kernels or hosts reported, if anything, and what ranks made that differs.
  void check();
  /// This rank gives up and tells all others. The first reason stands.
  void give_up(std::string_view reason) noexcept;
  /// Logs at intervals what is waited for, after half of the timeout of waits. Called on one thread.
  void note_wait(const cuda::WaitFailure& wait, double waited_s);

  /// Sets the call to which epochs opened from now on belong, as a tag for OpenedPass. Called by the thread that opens
  /// them.
  void set_call_fingerprint(const CallFingerprint& fingerprint) {
    fingerprint_tag_ = control_block_.show_fingerprint(rank_, fingerprint);
  }
  uint32_t fingerprint_tag() const { return fingerprint_tag_; }

  void count(int64_t rows_sent, int64_t bytes_sent, int64_t rows_received, int64_t bytes_received);
  TrafficCounters counters() const;
  void reset_counters();

 private:
  std::string call_text(const cuda::WaitFailure& failure, int reporter, int peer) const;
  Communicator& control_;
  const int rank_;
  const int size_;
  const double timeout_s_;
  const RankNames names_;
  HostControlBlock control_block_;
  const std::unique_ptr<ControlLinks> links_;  // over several nodes, else null
  ControlBlockAgreement agreement_;
  WaitNotes notes_;
  double last_waited_s_ = 0;
  uint32_t fingerprint_tag_ = 0;

  mutable std::mutex mutex_;         // over the following
  std::vector<std::string> passes_;  // labels by number
  size_t num_passes_ = 0;
  TrafficCounters counters_;
  Watchdog watchdog_;  // the last, since its thread uses the rest
};

}  // namespace tangram::comm
