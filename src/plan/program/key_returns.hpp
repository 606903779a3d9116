// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Gradients of K/V rows on a stream. A rank's contributions go home by casts that add, or are stored there by the call
// itself. The transport adds up what comes back.
#pragma once

#include <vector>

#include "plan/program/key_rows.hpp"

namespace tangram {

class KeyReturns {
 public:
  /// `calls`: of the backward pass. `given`: K, V and their gradients.
  KeyReturns(ProgramWriter& writer, const Plan& plan, int rank, const PassArguments& given, size_t num_calls);

  /// Lets the call write dk and dv.
  void add_to(AttendOp& call) const;
  void send_back(ProgramWriter& writer, const Exchange& exchange, size_t stage);
  /// Writes the gradients of the shard; closes the pass, if there is one.
  void finish(ProgramWriter& writer);

 private:
  /// NOTE [settled rows]: own rows that only this rank's queries see, so that no peer adds to their gradients. A call
  /// that stores rows at their owners writes final rows to the result, rounded, and nothing reads them again.
  std::vector<Range> find_final_rows() const;
  void store_rows();
  /// Row by row of the shard: the row of `computed_`, where there is one.
  RowLists lists_of_shard() const;

  const RankPlan& rank_;
  const PairRef shard_, results_;
  const std::vector<LocalKvRange> own_;
  const bool moves_, several_;
  bool writes_results_ = false;  // calls do, row by row
  bool stores_ = false;
  PairRef computed_;  // rows of the buffer
  PairRef own_part_;  // rows of the shard
  PairRef returned_;
  std::vector<RowSumOp> stores_of_call_;
  std::vector<Range> final_rows_;
};

}  // namespace tangram
