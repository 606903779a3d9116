// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// LocalControlBlock: where the ranks of a LocalGroup meet. Each operation of the group has a slot. A rank posts its own
// side there, waits for the others', reads their rows straight from their memory, and waits until they have read its
// own.
//
// NOTE [who may read]: a rank's memory is read by peers only between their arrival and the mark that they have read.
// Once the group has failed no read begins. A rank that leaves its slot first waits for reads that had begun, so that
// it may free its memory even though a slow peer arrives later.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/operation.hpp"

namespace tangram::comm {

class LocalControlBlock {
 public:
  LocalControlBlock(int size, double timeout_s);

  int size() const { return size_; }

  /// Reads what the rank needs from the others' operations, given by rank.
  using ReadPeers = std::function<void(std::span<const Operation* const>)>;

  /// One side of one operation. `read` is called when all ranks have arrived and agree, with their operations by rank.
  /// Returns, or throws, when no peer reads this rank's memory any more.
  void meet(int rank, const Operation& operation, const ReadPeers& read);
  /// Every wait, now or later, throws CommError.
  void abort(int rank, std::string_view reason);
  /// `rank` makes no further calls.
  void leave(int rank);

 private:
  struct Slot {
    explicit Slot(int size) : operations(static_cast<size_t>(size), nullptr), has_read(static_cast<size_t>(size)) {}
    std::vector<const Operation*> operations;
    std::vector<char> has_read;
    int num_arrived = 0;
    int num_reading = 0;
    int num_left = 0;
    std::string disagreement;  // set by the last to arrive
  };
  /// The end of the group: what every wait throws.
  struct Failure {
    bool is_timeout = false;
    std::string text;
  };
  using Lock = std::unique_lock<std::mutex>;

  Slot& slot_of(int rank);
  void wait_for_all(Lock& lock, Slot& slot, int rank, const Operation& operation);
  void read_peers(Lock& lock, Slot& slot, int rank, const ReadPeers& read);
  void wait_until_read(Lock& lock, Slot& slot, int rank, const Operation& operation);
  /// Waits until `done`; throws at the deadline, on failure, and when one of the `missing` ranks has left.
  template <class Done, class Missing>
  void wait(Lock& lock, int rank, const Operation& operation, Done done, Missing missing);
  void leave_slot(Lock& lock, Slot& slot);
  void fail(Failure failure);
  [[noreturn]] void throw_failure() const;

  const int size_;
  const double timeout_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slot> slots_;              // references stay valid while slots are added and dropped at the ends
  uint64_t first_slot_ = 0;             // number of the operation that slots_.front() belongs to
  std::vector<uint64_t> next_of_rank_;  // number of the operation that the rank comes to next
  std::vector<char> has_left_;
  std::optional<Failure> failure_;
};

}  // namespace tangram::comm
