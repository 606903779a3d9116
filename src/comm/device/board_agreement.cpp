// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/board_agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/facts_text.hpp"
#include "core/interrupt.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

BoardAgreement::BoardAgreement(HostBoard& board, int rank, double timeout_s, std::vector<int> rank_names,
                               std::function<void()> check)
    : board_(board), rank_(rank), timeout_s_(timeout_s), rank_names_(std::move(rank_names)), check_(std::move(check)) {}

void BoardAgreement::agree(const CallFacts& facts, uint64_t options) {
  Statement statement;
  statement.facts = facts;
  statement.options = options;
  state(statement);
}

void BoardAgreement::refuse(std::string_view reason) {
  Statement statement;
  std::memcpy(statement.refusal, reason.data(), std::min(reason.size(), sizeof(statement.refusal) - 1));
  try {
    state(statement);
  } catch (const Error&) {  // the caller throws its own
  }
}

void BoardAgreement::state(const Statement& statement) {
  look();
  Pending pending{board_.num_statements(rank_), statement, {}};
  const auto is_far_behind = [&](int peer) {
    return board_.num_statements(peer) + HostBoard::kStatements <= pending.number + 1;
  };
  for (int peer = 0; peer < board_.size(); ++peer) {
    if (peer == rank_) continue;
    pending.peers.push_back(peer);
    wait_until([&] { return is_far_behind(peer) ? peer : -1; });
  }
  board_.make_statement(rank_, statement);
  const std::lock_guard lock(mutex_);
  compare(pending);
  if (pending.peers.empty()) return;
  pending_.push_back(std::move(pending));
  is_settled_.store(false, std::memory_order_release);
}

void BoardAgreement::compare(Pending& pending) {
  std::erase_if(pending.peers, [&](int peer) {
    if (board_.num_statements(peer) <= pending.number) return false;
    // One that is gone was written over by a rank that had seen this one's.
    const std::optional<Statement> other = board_.statement(peer, pending.number);
    if (other) {
      if (std::string text = difference(pending.own, peer, *other); !text.empty()) disagree(std::move(text));
    }
    return true;
  });
}

void BoardAgreement::disagree(std::string text) {
  disagreement_ = std::move(text);
  is_settled_.store(false, std::memory_order_release);
  board_.give_up(rank_, disagreement_);
  throw InvalidArgument(disagreement_);
}

std::string BoardAgreement::difference(const Statement& own, int peer, const Statement& other) const {
  for (const auto& [rank, statement] : {std::pair(rank_, &own), std::pair(peer, &other)}) {
    if (statement->refusal[0] != '\0') {
      return fmt::format("DistAttention: rank {} refused its part: {}", name_of(rank), statement->refusal);
    }
  }
  const bool is_first = rank_ < peer;
  const int ranks[] = {name_of(is_first ? rank_ : peer), name_of(is_first ? peer : rank_)};
  const CallFacts facts[] = {is_first ? own.facts : other.facts, is_first ? other.facts : own.facts};
  if (const std::string text = differing_facts(facts, ranks); !text.empty()) {
    return fmt::format("DistAttention: mask, config and dispatch must be equal on every rank: {}", text);
  }
  if (own.options == other.options) return {};
  return fmt::format(
      "DistAttention: options and backends must be alike on every rank (got rank {}: {:x}; rank {}: {:x})", ranks[0],
      is_first ? own.options : other.options, ranks[1], is_first ? other.options : own.options);
}

void BoardAgreement::look() {
  if (is_settled_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (!disagreement_.empty()) throw InvalidArgument(disagreement_);
  for (Pending& pending : pending_) compare(pending);
  std::erase_if(pending_, [](const Pending& pending) { return pending.peers.empty(); });
  is_settled_.store(pending_.empty(), std::memory_order_release);
}

template <class Find>
void BoardAgreement::wait_until(const Find& find_missing) {
  const OnInterrupt give_up([this] { board_.give_up(rank_, kInterruptReason); });
  InterruptClock interrupts;
  const auto begin = std::chrono::steady_clock::now();
  for (int missing = find_missing(); missing >= 0; missing = find_missing()) {
    check_();
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > timeout_s_) {
      throw Timeout(fmt::format("DistAttention: rank {} must come to the same call within {} s (waited on rank {})",
                                name_of(missing), timeout_s_, name_of(rank_)));
    }
    interrupts.check();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void BoardAgreement::meet() {
  const auto missing = [&] {
    look();
    const std::lock_guard lock(mutex_);
    return pending_.empty() ? -1 : pending_.front().peers.front();
  };
  wait_until(missing);
}

}  // namespace tangram::comm
