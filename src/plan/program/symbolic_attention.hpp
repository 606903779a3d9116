// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention over fingerprints (NOTE [fingerprints]): what a call does to the cells of its rank, and what the results of
// a whole step must be.
#pragma once

#include "plan/program/symbolic.hpp"

namespace tangram {

/// Throw ProgramFault.
void attend(SymbolicMemory& memory, const AttendOp& op, const ProgramMask& mask, const CallShape& call);
void make_delta(SymbolicMemory& memory, const DeltaOp& op);
void merge(SymbolicMemory& memory, const MergeOp& op, const CallShape& call);
void make_dsink(SymbolicMemory& memory, const SinkGradOp& op, const CallShape& call);

/// Results of a pass over the whole mask.
class ExpectedResults {
 public:
  ExpectedResults(const Plan& plan, const CallShape& call);

  Element out(int64_t row, int head) const;  ///< and lse
  Element dq(int64_t row, int head) const;
  Element dk(int64_t row, int head) const;
  Element dv(int64_t row, int head) const;
  /// Summed over ranks where the sink is one of all rows; else of `row`.
  Element dsink(int64_t row, int64_t sink, int head) const;
  /// Largest logit of all cells of the head, over all ranks.
  Element max_logits(int head) const;

 private:
  Element share(int64_t row, int head) const;  // lse times delta
  /// Index of a row and head of the sequence in the mask of the head's group.
  size_t at_q(int64_t row, int head) const { return at(row, head, q_rows_, heads_.num_heads_q / groups_); }
  size_t at_k(int64_t row, int head) const { return at(row, head, k_rows_, heads_.num_heads_kv / groups_); }
  static size_t at(int64_t row, int head, int64_t rows, int heads) {
    return static_cast<size_t>((head / heads * rows + row) * heads + head % heads);
  }

  HeadConfig heads_;
  int groups_;
  int64_t q_rows_, k_rows_;  // of a group
  CallShape call_;
  std::vector<Element> keys_;     // [rows, heads]: the sum over what a query sees
  std::vector<Element> weights_;  // [rows, heads] of queries in the backward pass
  std::vector<Element> queries_;  // [key rows, K/V heads]: the sum of weights over the queries that see a key
};

/// The sinks of a row: the element of one, and the sum of all.
Element sink_element(const CallShape& call, int64_t row, int64_t sink, int head);
Element sum_of_sinks(const CallShape& call, int64_t row, int head);

}  // namespace tangram
