// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/control_block_agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/fingerprint_text.hpp"
#include "core/interrupt.hpp"
#include "core/options_word.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

ControlBlockAgreement::ControlBlockAgreement(HostControlBlock& control_block, int rank, double timeout_s,
                                             std::vector<int> rank_names, std::function<void()> check)
    : control_block_(control_block),
      rank_(rank),
      timeout_s_(timeout_s),
      rank_names_(std::move(rank_names)),
      check_(std::move(check)) {}

void ControlBlockAgreement::agree(const CallFingerprint& fingerprint, uint64_t options) {
  AgreementRecord statement;
  statement.fingerprint = fingerprint;
  statement.options = options;
  state(statement);
}

void ControlBlockAgreement::refuse(std::string_view reason) {
  AgreementRecord statement;
  std::memcpy(statement.refusal, reason.data(), std::min(reason.size(), sizeof(statement.refusal) - 1));
  try {
    state(statement);
  } catch (const Error&) {  // the caller throws its own
  }
}

void ControlBlockAgreement::state(const AgreementRecord& statement) {
  look();
  Pending pending{control_block_.num_statements(rank_), statement, {}};
  const auto is_far_behind = [&](int peer) {
    return control_block_.num_statements(peer) + HostControlBlock::kStatements <= pending.number + 1;
  };
  for (int peer = 0; peer < control_block_.size(); ++peer) {
    if (peer == rank_) continue;
    pending.peers.push_back(peer);
    wait_until([&] { return is_far_behind(peer) ? peer : -1; });
  }
  wait_until([&] { return control_block_.is_ahead_of_links(rank_) ? rank_ : -1; });
  control_block_.make_agreement_record(rank_, statement);
  const std::lock_guard lock(mutex_);
  compare(pending);
  if (pending.peers.empty()) return;
  pending_.push_back(std::move(pending));
  is_final_.store(false, std::memory_order_release);
}

void ControlBlockAgreement::compare(Pending& pending) {
  std::erase_if(pending.peers, [&](int peer) {
    if (control_block_.num_statements(peer) <= pending.number) return false;
    // One that is gone was written over by a rank that had seen this one's.
    const std::optional<AgreementRecord> other = control_block_.statement(peer, pending.number);
    if (other) {
      if (std::string text = difference(pending.own, peer, *other); !text.empty()) disagree(std::move(text));
    }
    return true;
  });
}

void ControlBlockAgreement::disagree(std::string text) {
  disagreement_ = std::move(text);
  is_final_.store(false, std::memory_order_release);
  control_block_.give_up(rank_, disagreement_);
  throw InvalidArgument(disagreement_);
}

std::string ControlBlockAgreement::difference(const AgreementRecord& own, int peer,
                                              const AgreementRecord& other) const {
  for (const auto& [rank, statement] : {std::pair(rank_, &own), std::pair(peer, &other)}) {
    if (statement->refusal[0] != '\0') {
      return fmt::format("DistAttention: rank {} refused its part: {}", name_of(rank), statement->refusal);
    }
  }
  const bool is_first = rank_ < peer;
  const int ranks[] = {name_of(is_first ? rank_ : peer), name_of(is_first ? peer : rank_)};
  const CallFingerprint fingerprint[] = {is_first ? own.fingerprint : other.fingerprint,
                                         is_first ? other.fingerprint : own.fingerprint};
  if (const std::string text = differing_fields(fingerprint, ranks); !text.empty()) {
    return fmt::format("DistAttention: mask, config and dispatch must be equal on every rank: {}", text);
  }
  if (own.options == other.options) return {};
  const uint64_t options[] = {is_first ? own.options : other.options, is_first ? other.options : own.options};
  const std::string backends[] = {backend_of_word(options[0]), backend_of_word(options[1])};
  if (backends[0] != backends[1]) {
    return fmt::format(
        "DistAttention: every rank must use the same backend, pass one that all GPUs of the group have "
        "(got rank {}: {}; rank {}: {})",
        ranks[0], backends[0], ranks[1], backends[1]);
  }
  return fmt::format(
      "DistAttention: options and backends must be alike on every rank (got rank {}: {:x}; rank {}: {:x})", ranks[0],
      options[0], ranks[1], options[1]);
}

void ControlBlockAgreement::look() {
  if (is_final_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (!disagreement_.empty()) throw InvalidArgument(disagreement_);
  for (Pending& pending : pending_) compare(pending);
  std::erase_if(pending_, [](const Pending& pending) { return pending.peers.empty(); });
  is_final_.store(pending_.empty(), std::memory_order_release);
}

template <class Find>
void ControlBlockAgreement::wait_until(const Find& find_missing) {
  const OnInterrupt give_up([this] { control_block_.give_up(rank_, kInterruptReason); });
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

void ControlBlockAgreement::meet() {
  const auto missing = [&] {
    look();
    const std::lock_guard lock(mutex_);
    return pending_.empty() ? -1 : pending_.front().peers.front();
  };
  wait_until(missing);
}

}  // namespace tangram::comm
