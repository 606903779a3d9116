// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// WaitGraph: who is to blame when nothing moves.
//
// NOTE [who waits for whom]: a rank that waits tells all others for whom, again and again. A rank that others wait for
// and that says nothing is the missing one. A rank that says for whom it waits is held up too, and the ranks it waits
// for are examined next. Reports of a rank always reach the ranks that wait for it: they take all that it sent before,
// because it is no further than they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/operation.hpp"

namespace tangram::comm {

class WaitGraph {
 public:
  WaitGraph(Caller caller, double timeout_s);

  /// Whether the others should be told (again): this rank has waited since `begin_s`. Times are steady_seconds.
  bool is_due(double begin_s, double now_s);
  /// `peers` as it is sent, a bit for each rank.
  std::vector<char> encode(std::span<const int> peers) const;
  /// Notes a message of `peer`; ignores bytes that `encode` did not make.
  void hear(int peer, std::span<const char> bytes, double now_s);

  /// Ranks that have sent nothing for half of the timeout, in order, among `peers`, the ranks they wait for, and so on.
  /// Empty if all wait for each other.
  std::vector<int> silent(std::span<const int> peers, double now_s) const;

 private:
  struct Report {
    double heard_s = 0;
    std::vector<int> waits_for;
  };

  Caller caller_;
  double fresh_s_;
  double interval_s_;
  double told_s_ = 0;
  std::vector<Report> reports_;  // by rank
};

}  // namespace tangram::comm
