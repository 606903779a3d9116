// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NcclWatch: when a group over NCCL has failed, and whom a rank then names. What it looks at is the control block and
// what NCCL says of itself, so that it is tested without either a GPU or NCCL.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "comm/device/host_control_block.hpp"

namespace tangram::comm {

/// On one thread, which calls the looks again and again. See NOTE [what is under way].
class NcclWatch {
 public:
  struct Group {
    HostControlBlock& control_block;
    int rank = 0;
    double timeout_s = 0;
    std::function<void(const cuda::WaitFailure& wait, double waited_s)> note_wait;  // half of the time has gone
    std::function<void(std::string_view reason)> give_up;                           // tells all ranks
    std::function<std::string(int rank)> name_of;
  };
  explicit NcclWatch(Group group);

  /// Fails an operation that has made no progress for the timeout, or of which a host has noticed that it cannot.
  void look_at_deadline();
  /// `result`: of ncclCommGetAsyncError, `text` what NCCL calls it. An error of the own network card is given up with
  /// the peer at the other end. That a peer is gone is given up later: others know within a second which.
  void look_at_result(int result, const char* text);

  /// Makes `failure` that of all ranks.
  void publish(const cuda::WaitFailure& failure);
  /// Whether this rank knows of one.
  bool has_failed() const;

 private:
  const Group group_;
  uint64_t seen_ = 0;  // the operation that the stream was at
  double since_s_ = 0;
  double lost_since_s_ = 0;  // when NCCL first said that a peer is gone; 0: it has not
};

/// Seconds that who learns from NCCL that a peer is gone waits for its name.
inline constexpr double kNcclNaming_s = 2;

}  // namespace tangram::comm
