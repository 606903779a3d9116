// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Beacon: how ranks of one host see whether each other's processes exist, without MPI, which hangs when one does not.
// A process holds a socket in Linux's abstract name space; the kernel removes it when the process ends, however it
// ends. Over these sockets ranks also ask each other whether they still run, and one that gives up tells the others
// why.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tangram::comm {

class Beacon {
 public:
  /// Shows that `rank` of `job` lives. Without a name space of sockets it shows nothing and sees everybody alive.
  Beacon(std::string job, int rank);
  ~Beacon();
  Beacon(const Beacon&) = delete;
  Beacon& operator=(const Beacon&) = delete;

  /// Whether the process of `rank` exists on this host.
  bool sees(int rank) const;

  /// Whether the others can see this rank, and it can hear them.
  bool works() const { return socket_ >= 0; }
  /// Asks ranks [0, num_ranks) for an answer, which ranks that call `listen` give. Never blocks.
  void ask(int num_ranks);
  /// Answers who asks, and takes in the answers of others.
  void listen();
  /// When `rank` has answered last, in steady_seconds; 0: never.
  double heard_s(int rank) const;
  /// Tells ranks [0, num_ranks), which find the text in `told` after they have listened.
  void tell(int num_ranks, std::string_view text);
  const std::optional<std::string>& told() const { return told_; }

 private:
  void send(int rank, std::string_view message) const;

  std::string job_;
  int rank_;
  int socket_ = -1;
  std::vector<double> heard_s_;  // by rank, as far as some have answered
  std::optional<std::string> told_;
};

}  // namespace tangram::comm
