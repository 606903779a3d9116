// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// ControlBlockAgreement: checks that all ranks of a group make the same, without waiting for other ranks. Between nodes
// control links copy what they say (ControlLinks).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/host_control_block.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// NOTE [agreement without a meeting] Each rank writes to the control block what it is about to make, and reads what
/// the others have written. Of any two ranks the second one sees both. It reports a mismatch to both, since the first
/// one may have put work on its GPU that waits for the second. The group is then broken, and the next rank that reads
/// gets the same error. Ranks that are ahead wait before the control block would be overwritten, within the same
/// deadline as all waits.
///
/// Thread-safe, but for agree() and refuse(), which are calls of one sequence, the same on all ranks.
class ControlBlockAgreement final : public Agreement {
 public:
  /// `check` throws where the group has failed; it is called while the rank waits.
  ControlBlockAgreement(HostControlBlock& control_block, int rank, double timeout_s, std::vector<int> rank_names,
                        std::function<void()> check);

  void agree(const CallFingerprint& fingerprint, uint64_t options) override;
  void refuse(std::string_view reason) override;
  /// Throws what ranks have said meanwhile. Does not wait; costs a load where all have come.
  void look();
  void meet() override;

 private:
  struct Pending {
    uint64_t number = 0;
    AgreementRecord own;
    std::vector<int> peers;  // that have not said it yet
  };
  void state(const AgreementRecord& statement);
  /// Compares records and forgets ranks that agree. The mutex must be held.
  void compare(Pending& pending);
  [[noreturn]] void disagree(std::string text);
  std::string difference(const AgreementRecord& own, int peer, const AgreementRecord& other) const;
  int name_of(int rank) const { return rank_names_.empty() ? rank : rank_names_[static_cast<size_t>(rank)]; }
  /// Until `find_missing` finds no rank, -1.
  template <class Find>
  void wait_until(const Find& find_missing);

  HostControlBlock& control_block_;
  const int rank_;
  const double timeout_s_;
  const std::vector<int> rank_names_;
  const std::function<void()> check_;

  std::atomic<bool> is_final_ = true;
  std::mutex mutex_;  // over the following
  std::vector<Pending> pending_;
  std::string disagreement_;
};

}  // namespace tangram::comm
