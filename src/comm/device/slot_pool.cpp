// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/slot_pool.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram::comm {

namespace {

void mark(const std::string& label, const char* what, std::vector<char>& done, int stage) {
  require(stage >= 0 && stage < std::ssize(done), "{} '{}': stage must lie in [0, {}) (got {})", what, label,
          done.size(), stage);
  require(!done[static_cast<size_t>(stage)], "{} '{}': a stage is done once in an epoch (got stage {} again)", what,
          label, stage);
  done[static_cast<size_t>(stage)] = 1;
}

bool all(const std::vector<char>& done) {
  return std::all_of(done.begin(), done.end(), [](char is_done) { return is_done != 0; });
}

}  // namespace

int SlotPool::take(const std::string& label) {
  for (int i = 0; i < size(); ++i) {
    const int slot = (next_ + i) % size();
    if (states_[static_cast<size_t>(slot)] != State::kFree) continue;
    states_[static_cast<size_t>(slot)] = State::kTaken;
    next_ = (slot + 1) % size();
    return slot;
  }
  require(false, "begin '{}': a slot must be free (got num_slots={}, all in use or kept)", label, size());
  return -1;
}

void SlotPool::keep(int slot) {
  TANGRAM_ASSERT(states_[static_cast<size_t>(slot)] == State::kTaken);
  states_[static_cast<size_t>(slot)] = State::kKept;
}

void SlotPool::take_kept(int slot, const std::string& label) {
  require(slot >= 0 && slot < size() && states_[static_cast<size_t>(slot)] == State::kKept,
          "begin_kept '{}': needs a slot that was kept and not used since (got {})", label, slot);
  states_[static_cast<size_t>(slot)] = State::kTaken;
}

void SlotPool::release(int slot) {
  TANGRAM_ASSERT(states_[static_cast<size_t>(slot)] == State::kTaken);
  states_[static_cast<size_t>(slot)] = State::kFree;
}

EpochState::EpochState(const DevicePassSpec& spec)
    : label_(spec.label),
      reuses_sources_(spec.reuses_sources),
      credited_(spec.casts.size()),
      given_(spec.casts.size()),
      cast_(spec.casts.size()),
      reduced_(spec.reduces.size()) {
  for (const int stage : spec.credited) credited_[static_cast<size_t>(stage)] = 1;
}

void EpochState::require_open(const char* what) const {
  require(open_, "{} '{}': an epoch must be open (call begin first)", what, label_);
}

void EpochState::begin() {
  require(!open_, "begin '{}': the last epoch of the pass must have ended", label_);
  open_ = true;
  finished_ = false;
  for (std::vector<char>* done : {&given_, &cast_, &reduced_}) std::fill(done->begin(), done->end(), 0);
}

void EpochState::release_credit(int stage) {
  require_open("release_credit");
  mark(label_, "release_credit", given_, stage);
  const auto index = static_cast<size_t>(stage);
  require(credited_[index] && !cast_[index],
          "release_credit '{}': must be for a stage that is credited, before its cast (got {})", label_, stage);
}

void EpochState::cast(int stage) {
  require_open("cast");
  mark(label_, "cast", cast_, stage);
  const auto index = static_cast<size_t>(stage);
  require(!credited_[index] || given_[index],
          "cast '{}': a stage that is credited must have been given before (got {})", label_, stage);
}

bool EpochState::all_cast() const { return all(cast_); }

void EpochState::wait_group_cast(int stage) {
  require_open("wait_group_cast");
  // Peers that wait for this rank's rows before they send theirs would otherwise wait for ever.
  require(stage >= 0 && stage < std::ssize(cast_) && cast_[static_cast<size_t>(stage)],
          "wait_group_cast '{}': the stage must have been cast before (got {})", label_, stage);
}

void EpochState::wait_send(int stage) {
  wait_group_cast(stage);
  require(reuses_sources_, "wait_send '{}': the pass must have been prepared for it (got reuses_sources=false)",
          label_);
}

void EpochState::reduce(int stage) {
  require_open("reduce");
  mark(label_, "reduce", reduced_, stage);
}

void EpochState::finish_reduce() {
  require_open("finish_reduce");
  require(all(reduced_) && !finished_, "finish_reduce '{}': once, after all stages were reduced", label_);
  finished_ = true;
}

void EpochState::end() {
  require_open("end");
  require(all(cast_) && all(reduced_) && (reduced_.empty() || finished_),
          "end '{}': all stages must have been cast, reduced and finished", label_);
  open_ = false;
}

}  // namespace tangram::comm
