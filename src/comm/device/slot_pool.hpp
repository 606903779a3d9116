// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// SlotPool and EpochState: in which order a pass may be used. All ranks make the same calls, so that all come to the
// same slots without asking each other.
#pragma once

#include <string>
#include <vector>

#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// Copies of a pass's buffers. Free slots are taken in turn, so that a slot rests as long as possible.
class SlotPool {
 public:
  explicit SlotPool(int num_slots) : states_(static_cast<size_t>(num_slots), State::kFree) {}

  int size() const { return static_cast<int>(states_.size()); }
  /// Throws InvalidArgument when all are taken or kept.
  int take(const std::string& label);
  /// A taken slot becomes kept, a kept one taken, a taken one free.
  void keep(int slot);
  void take_kept(int slot, const std::string& label);
  void release(int slot);

 private:
  enum class State { kFree, kTaken, kKept };
  std::vector<State> states_;
  int next_ = 0;
};

/// Calls made in the open epoch. Each call throws InvalidArgument when it may not be made now.
class EpochState {
 public:
  explicit EpochState(const DevicePassSpec& spec);

  void begin();
  /// Takes begin back: nothing was enqueued.
  void cancel() { open_ = false; }
  /// Releases the credit of a credited stage, before its cast.
  void release_credit(int stage);
  void cast(int stage);
  void wait_group_cast(int stage);
  void wait_send(int stage);
  void reduce(int stage);
  void finish_reduce();
  void end();
  void require_open(const char* what) const;
  bool is_open() const { return open_; }
  bool all_cast() const;

 private:
  std::string label_;
  bool open_ = false;
  bool finished_ = false;
  bool reuses_sources_;
  std::vector<char> credited_, given_;
  std::vector<char> cast_;
  std::vector<char> reduced_;
};

}  // namespace tangram::comm
