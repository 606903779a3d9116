// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/wait_graph.hpp"

#include <algorithm>

namespace tangram::comm {

namespace {

constexpr double kMaxInterval_s = 1;
constexpr double kReportsPerTimeout = 16;
/// Long enough for a rank that gets no core for a while; a rank that was stopped has been silent for the whole timeout.
constexpr double kFreshShare = 0.5;

size_t num_bytes(int num_ranks) { return (static_cast<size_t>(num_ranks) + 7) / 8; }

}  // namespace

WaitGraph::WaitGraph(Caller caller, double timeout_s)
    : caller_(caller),
      fresh_s_(timeout_s * kFreshShare),
      interval_s_(std::min(kMaxInterval_s, timeout_s / kReportsPerTimeout)),
      reports_(static_cast<size_t>(caller.size)) {}

bool WaitGraph::is_due(double begin_s, double now_s) {
  if (now_s - std::max(begin_s, told_s_) < interval_s_) return false;
  told_s_ = now_s;
  return true;
}

std::vector<char> WaitGraph::encode(std::span<const int> peers) const {
  std::vector<char> bytes(num_bytes(caller_.size));
  for (const int peer : peers) {
    char& byte = bytes[static_cast<size_t>(peer) / 8];
    byte = static_cast<char>(byte | 1 << (peer % 8));
  }
  return bytes;
}

void WaitGraph::hear(int peer, std::span<const char> bytes, double now_s) {
  if (bytes.size() != num_bytes(caller_.size)) return;
  Report& report = reports_[static_cast<size_t>(peer)];
  report.heard_s = now_s;
  report.waits_for.clear();
  for (int rank = 0; rank < caller_.size; ++rank) {
    if ((bytes[static_cast<size_t>(rank) / 8] >> (rank % 8) & 1) != 0) report.waits_for.push_back(rank);
  }
}

std::vector<int> WaitGraph::silent(std::span<const int> peers, double now_s) const {
  std::vector<char> is_seen(static_cast<size_t>(caller_.size), 0);
  is_seen[static_cast<size_t>(caller_.rank)] = 1;  // we wait, too
  std::vector<int> open;
  const auto see = [&](std::span<const int> ranks) {
    for (const int rank : ranks) {
      if (!is_seen[static_cast<size_t>(rank)]) open.push_back(rank);
      is_seen[static_cast<size_t>(rank)] = 1;
    }
  };
  see(peers);
  std::vector<int> silent;
  while (!open.empty()) {
    const int rank = open.back();
    open.pop_back();
    const Report& report = reports_[static_cast<size_t>(rank)];
    if (report.waits_for.empty() || now_s - report.heard_s > fresh_s_) {
      silent.push_back(rank);
    } else {
      see(report.waits_for);
    }
  }
  std::sort(silent.begin(), silent.end());
  return silent;
}

}  // namespace tangram::comm
