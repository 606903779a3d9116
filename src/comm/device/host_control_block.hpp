// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HostControlBlock: a row of host memory for each rank that all ranks of a node can read and write. A watchdog reads
// there whether ranks still live, and what their kernels wait for. Over several nodes see ControlLinks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/socket/link.hpp"
#include "cuda/wait_context.hpp"
#include "tangram/call_fingerprint.hpp"
#include "tangram/communicator.hpp"

namespace tangram::comm {

/// Record of a rank about an object that all ranks are about to make: its plan, or the reason why the rank cannot.
struct AgreementRecord {
  CallFingerprint fingerprint;
  uint64_t options = 0;  // a hash of all else that must be alike
  char refusal[200] = {};
};

class HostControlBlock {
 public:
  /// Collective over `control`, whose ranks are processes or threads of one process. On one node they share the memory.
  /// If they are on several, each has rows of its own, which are linked: ControlLinks copies them.
  HostControlBlock(Communicator& control, double timeout_s);

  bool is_linked() const { return is_linked_; }
  /// Notes that this rank has heard of `rank` now (several nodes).
  void mark_alive(int rank);

  cuda::ControlBlockRow& row(int rank) const { return memory_->rows[rank]; }
  int size() const { return size_; }
  size_t bytes() const { return static_cast<size_t>(size_) * row_bytes(); }

  /// Calls `prepare` for the memory once in this process, and `undo` before it is unmapped.
  void prepare_once(const std::function<void(void* data, size_t bytes)>& prepare,
                    const std::function<void(void* data)>& undo);

  static uint64_t load(const uint64_t& word);
  static void store(uint64_t& word, uint64_t value);
  /// Stores unless the word is set already.
  static void store_first(uint64_t& word, uint64_t value);

  /// Tells all ranks that `rank` gives up, and why, cut to what its row holds. The first reason stands: peers may be
  /// reading it. Not for two threads of one rank at once.
  void give_up(int rank, std::string_view reason) noexcept;

  /// Shows all ranks what calls of `rank` are about, and returns their tag: a hash of 19 bits. Two tags are equal if
  /// their calls are, and one in half a million times if they are not; 0: no facts. Not for two threads of one rank at
  /// once.
  uint32_t show_fingerprint(int rank, const CallFingerprint& fingerprint);
  /// Fingerprint that `rank` showed under `tag`, while it is among the last 16 that differ.
  std::optional<CallFingerprint> fingerprint(int rank, uint32_t tag) const;
  /// The oldest that `rank` showed after `num_seen` others, while it is among the last 16; counts it in `num_seen`.
  std::optional<CallFingerprint> next_fingerprint(int rank, uint64_t& num_seen) const;

  /// The next statement of `rank`. The last kStatements of each rank can be read: who makes them may not be further
  /// ahead of those who read. Not for two threads of one rank at once.
  static constexpr uint64_t kStatements = 64;
  void make_agreement_record(int rank, const AgreementRecord& statement);
  uint64_t num_statements(int rank) const { return load(statements_row(rank).num_made); }
  /// Notes that `num_statements` of this rank have been taken from here for all peers (several nodes).
  void mark_sent(uint64_t num_statements) { num_sent_.store(num_statements, std::memory_order_release); }
  /// Whether this rank's next statement would take the place of one that is still to be sent.
  bool is_ahead_of_links(int rank) const {
    return is_linked_ && num_statements(rank) + 1 >= num_sent_.load(std::memory_order_acquire) + kStatements;
  }
  /// Number `number`, from 0, or nothing where it has not been made, or was so long ago.
  std::optional<AgreementRecord> statement(int rank, uint64_t number) const;

 private:
  struct FingerprintRow {
    static constexpr uint64_t kLength = 16;
    uint64_t num_shown = 0;
    uint64_t tags[kLength] = {};
    CallFingerprint fingerprint[kLength] = {};
  };
  struct StatementsRow {
    uint64_t num_made = 0;
    AgreementRecord made[kStatements] = {};
  };
  static constexpr size_t row_bytes() {
    return sizeof(cuda::ControlBlockRow) + sizeof(FingerprintRow) + sizeof(StatementsRow);
  }
  FingerprintRow& fingerprint_row(int rank) const {
    return reinterpret_cast<FingerprintRow*>(memory_->rows + size_)[rank];
  }
  StatementsRow& statements_row(int rank) const {
    return reinterpret_cast<StatementsRow*>(reinterpret_cast<FingerprintRow*>(memory_->rows + size_) + size_)[rank];
  }

  /// The mapping, shared by ranks that are threads.
  struct Memory {
    Memory(int fd, size_t num_bytes);
    ~Memory();
    cuda::ControlBlockRow* rows = nullptr;
    size_t bytes = 0;
    std::mutex mutex;
    bool prepared = false;
    std::function<void(void*)> undo;
  };

  int size_ = 0;
  bool is_linked_ = false;
  std::atomic<uint64_t> num_sent_ = 0;
  std::shared_ptr<Memory> memory_;
};

/// A thread that shows this rank to be alive and notices when another process has ended or does not run. Then it tells
/// the kernels of this rank, once. Kernels that have waited for half of their time are handed to `still_waits` with
/// how long, now and then, on that thread.
class Watchdog {
 public:
  using StillWaits = std::function<void(const cuda::WaitFailure& failure, double waited_s)>;
  Watchdog(HostControlBlock& control_block, int rank, double timeout_s, StillWaits still_waits);
  /// This rank leaves; the others no longer watch it.
  ~Watchdog();

 private:
  void run();
  void look(int peer);
  void look_at_waits();
  void notice(cuda::WaitKind kind, int peer);

  HostControlBlock& control_block_;
  const int rank_;
  const double timeout_s_;
  const StillWaits still_waits_;
  double waits_since_s_ = 0, wait_seen_s_ = 0;  // of the wait that kernels told of last; 0: of none
  std::vector<UniqueFd> processes_;             // pidfds; empty where the system gives none
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace tangram::comm
