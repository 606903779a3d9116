// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// ControlLinks: the control block of ranks on several nodes. Each rank has a block of its own, and connections that
// copy rows into those of the others.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "comm/device/host_control_block.hpp"
#include "core/fork.hpp"
#include "tangram/communicator.hpp"

namespace tangram::comm {

/// NOTE [control links] Each rank is connected to each other by TCP. A thread sends the own row to every peer when it
/// has changed, and at intervals as a sign of life. It writes received rows into the peer's row here, with its own
/// clock. Words that this rank wrote into a peer's row, which tell of a failure, it sends to that peer. So the control
/// block works as on one node, but tens of milliseconds late, and the rest of the library does not notice the
/// difference. If a connection ends before its peer has left, the peer's process has ended. If the system gives one up,
/// because nothing was acknowledged for a quarter of the timeout, the peer's node is lost.
///
/// Agreement records are sent in the order in which they are made. A rank makes no more than the control block holds
/// before they have been taken from there (HostControlBlock::mark_sent).
class ControlLinks {
 public:
  /// Collective over `control`. The control block must be a linked one and outlive the links.
  ControlLinks(HostControlBlock& control_block, Communicator& control, double timeout_s);
  /// Tells the peers all that is left to tell. Waits for peers that still run to hang up, kLeave_s at most.
  ~ControlLinks();
  ControlLinks(const ControlLinks&) = delete;
  ControlLinks& operator=(const ControlLinks&) = delete;

  static constexpr double kLeave_s = 1;

 private:
  struct RowState {
    uint64_t operation = 0, progress = 0, opened = 0, stopped = 0, has_left = 0;
    friend bool operator==(const RowState&, const RowState&) = default;
  };
  struct FailureState {
    uint64_t report = 0, host_abort = 0;
    friend bool operator==(const FailureState&, const FailureState&) = default;
  };
  struct Message;
  struct Peer {
    UniqueFd fd;  // empty: this rank, or a connection that has ended
    std::vector<char> in, out;
    RowState sent_row;
    FailureState sent_failure;
    uint64_t num_fingerprints = 0;
    uint64_t num_statements = 0;
    double sent_s = 0, heard_s = 0;
    bool has_said_all = false;  // this rank leaves, and nothing more will come
  };

  void run();
  /// Puts what has changed into `out`.
  void prepare(int rank, double now_s);
  /// Notes what has been put into `out` for all connected peers as sent.
  void note_statements_sent();
  void send(int rank);
  void receive(int rank);
  bool take(int rank, const Message& message);
  void wait(double seconds);
  void lose(int rank, cuda::WaitKind kind);
  RowState own_row() const;

  HostControlBlock& control_block_;
  const int rank_;
  const double timeout_s_;
  std::vector<Peer> peers_;
  ClosedInChildren closed_in_children_;
  std::atomic<bool> leaving_ = false;
  std::thread thread_;
};

}  // namespace tangram::comm
