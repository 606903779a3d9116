// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/local/local_control_block.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/log.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return text;
}

}  // namespace

LocalControlBlock::LocalControlBlock(int size, double timeout_s)
    : size_(size),
      timeout_s_(timeout_s),
      next_of_rank_(static_cast<size_t>(size), 0),
      has_left_(static_cast<size_t>(size), 0) {}

void LocalControlBlock::meet(int rank, const Operation& operation, const ReadPeers& read) {
  Lock lock(mutex_);
  if (failure_) throw_failure();
  Slot& slot = slot_of(rank);
  slot.operations[static_cast<size_t>(rank)] = &operation;
  if (++slot.num_arrived == size_) {
    std::vector<const Signature*> signatures;
    for (const Operation* other : slot.operations) signatures.push_back(&other->signature);
    slot.disagreement = find_disagreement(signatures);
  }
  changed_.notify_all();
  try {
    wait_for_all(lock, slot, rank, operation);
    require(slot.disagreement.empty(), "{}", slot.disagreement);
    read_peers(lock, slot, rank, read);
    wait_until_read(lock, slot, rank, operation);
  } catch (...) {
    leave_slot(lock, slot);
    throw;
  }
  leave_slot(lock, slot);
}

void LocalControlBlock::read_peers(Lock& lock, Slot& slot, int rank, const ReadPeers& read) {
  ++slot.num_reading;
  lock.unlock();
  try {
    read(slot.operations);
  } catch (const std::exception& error) {
    lock.lock();
    --slot.num_reading;
    fail({false, fmt::format("rank {} gave up: {}", rank, error.what())});
    throw;
  }
  lock.lock();
  --slot.num_reading;
  slot.has_read[static_cast<size_t>(rank)] = 1;
  changed_.notify_all();
}

LocalControlBlock::Slot& LocalControlBlock::slot_of(int rank) {
  const uint64_t number = next_of_rank_[static_cast<size_t>(rank)]++;
  while (first_slot_ + slots_.size() <= number) slots_.emplace_back(size_);
  return slots_[number - first_slot_];
}

template <class Done, class Missing>
void LocalControlBlock::wait(Lock& lock, int rank, const Operation& operation, Done done, Missing missing) {
  const auto begin = std::chrono::steady_clock::now();
  const auto after = [&](double seconds) { return begin + std::chrono::duration<double>(seconds); };
  const auto deadline = after(timeout_s_);
  WaitNotes notes(timeout_s_);
  while (!done()) {
    if (failure_) throw_failure();
    const std::vector<int> ranks = missing();
    const auto lost =
        std::find_if(ranks.begin(), ranks.end(), [&](int peer) { return has_left_[static_cast<size_t>(peer)] != 0; });
    if (lost != ranks.end()) {
      fail({false, fmt::format("{}: rank {} ended without taking part", operation.name(), *lost)});
      throw_failure();
    }
    if (changed_.wait_until(lock, std::min(deadline, after(notes.next_s()))) == std::cv_status::no_timeout || done() ||
        failure_) {
      continue;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < deadline) {
      const std::string text = rank_list(missing());
      lock.unlock();  // the listener may take long
      notes.note(operation.name(), text, rank, std::chrono::duration<double>(now - begin).count());
      lock.lock();
    } else {
      fail({true, fmt::format("{}: {} did not take part within {:g} s (noticed by rank {})", operation.name(),
                              rank_list(missing()), timeout_s_, rank)});
      throw_failure();
    }
  }
}

void LocalControlBlock::wait_for_all(Lock& lock, Slot& slot, int rank, const Operation& operation) {
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int peer = 0; peer < size_; ++peer) {
      if (slot.operations[static_cast<size_t>(peer)] == nullptr) ranks.push_back(peer);
    }
    return ranks;
  };
  wait(lock, rank, operation, [&] { return slot.num_arrived == size_; }, missing);
  if (failure_) throw_failure();
}

void LocalControlBlock::wait_until_read(Lock& lock, Slot& slot, int rank, const Operation& operation) {
  std::vector<int> readers;
  for (const RowCopy& copy : operation.outgoing) {
    if (copy.peer != rank && (readers.empty() || readers.back() != copy.peer)) readers.push_back(copy.peer);
  }
  const auto missing = [&] {
    std::vector<int> ranks;
    for (const int peer : readers) {
      if (!slot.has_read[static_cast<size_t>(peer)]) ranks.push_back(peer);
    }
    return ranks;
  };
  wait(lock, rank, operation, [&] { return missing().empty(); }, missing);
}

void LocalControlBlock::leave_slot(Lock& lock, Slot& slot) {
  if (!lock.owns_lock()) lock.lock();
  // Reads last as long as a copy, so this needs no deadline. See NOTE [who may read].
  if (failure_) changed_.wait(lock, [&] { return slot.num_reading == 0; });
  ++slot.num_left;
  while (!slots_.empty() && slots_.front().num_left == size_) {
    slots_.pop_front();
    ++first_slot_;
  }
}

void LocalControlBlock::fail(Failure failure) {
  if (!failure_) failure_ = std::move(failure);
  changed_.notify_all();
}

void LocalControlBlock::throw_failure() const {
  if (failure_->is_timeout) throw Timeout(failure_->text);
  throw CommError(failure_->text);
}

void LocalControlBlock::abort(int rank, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  fail({false, fmt::format("rank {} gave up: {}", rank, reason)});
}

void LocalControlBlock::leave(int rank) {
  const std::lock_guard lock(mutex_);
  has_left_[static_cast<size_t>(rank)] = 1;
  changed_.notify_all();
}

}  // namespace tangram::comm
