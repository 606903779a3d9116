// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// SymbolicRank: one rank in one pass of `verify`: its memory, its place in the program, and what it has sent.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "plan/program/emit.hpp"
#include "plan/program/symbolic.hpp"

namespace tangram {

/// One rank in one pass.
struct SymbolicRank {
  const Program& program;
  std::vector<ProgramMask> masks;
  SymbolicMemory memory;
  std::vector<int64_t> q_rows, k_rows;  // of its shards, in the sequence
  size_t next = 0;                      // operation
  /// Elements, by cast and tensor, that were sent to each peer, in the order of the exchange.
  std::vector<std::vector<std::map<int, std::vector<std::pair<RowCopy, std::vector<Element>>>>>> sent;
  std::vector<bool> posted, waited, given, ended_sends;
  bool waits_end_sends = true;  ///< of casts, as on the host; else WaitSendOp

  SymbolicRank(const Plan& plan, int rank, const Program& of_pass, std::vector<ProgramMask> of_masks,
               const SymbolicMemory* kept);

  /// Operations beside attention. Throw ProgramFault.
  void sum_rows(const RowSumOp& sum);
  void copy_floats(const FloatCopyOp& copy);
  void find_largest(const LargestOp& op);
  /// Once all casts that add to kReturned have ended.
  void finish(const FinishOp& op);
  std::vector<int> casts_that_return() const;
  /// Begins the cast, if `has_credit`: those to whom it sends have said that its targets are free.
  void post(int cast_number);
  bool has_credit(int number, int self, std::span<const std::unique_ptr<SymbolicRank>> ranks) const;
  /// Its targets may be written from now on.
  void release_credit(int number);
  /// Ends the sends of a cast: its sources may be written from now on.
  void end_sends(int number);
  /// Ends it, as rank `self` of `ranks`; false where a peer has not begun it.
  bool land(int number, int self, std::span<const std::unique_ptr<SymbolicRank>> ranks);
  /// Like land(), for the casts of `numbers` that have not ended.
  bool land_all(const std::vector<int>& numbers, int self, std::span<const std::unique_ptr<SymbolicRank>> ranks);

 private:
  size_t checked_cast(int number) const;
  void receive(size_t cast, size_t number, int self, std::span<const std::unique_ptr<SymbolicRank>> ranks);
};

}  // namespace tangram
