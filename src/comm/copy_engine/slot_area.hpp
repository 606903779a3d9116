// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// SlotArea: copies ("slots") of some tensors on every rank that peers write into, with the flags by which the ranks
// give slots back to each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/device/kernels.hpp"
#include "comm/device/slot_pool.hpp"
#include "comm/heap/symmetric_heap.hpp"
#include "cuda/device_buffer.hpp"

namespace tangram::comm {

class SlotArea {
 public:
  struct Shape {
    int64_t rows = 0;  // may differ between ranks
    std::vector<int64_t> row_bytes;
    int num_slots = 1;
    int64_t num_flags = 0;  // further words on each rank that peers write, for the user's own purposes
  };
  /// Collective over `control`, as SymmetricHeap::allocate.
  SlotArea(Communicator& control, SymmetricHeap& heap, const Shape& shape, const std::string& label);

  SlotPool& slots() { return slots_; }
  int num_slots() const { return shape_.num_slots; }

  /// Tensor `tensor` of a slot on a rank, as this rank's GPU and copy engines see it.
  char* address(int rank, int slot, int tensor) const;
  /// Where the tensor begins in any slot of a rank, counted from the slot's begin.
  int64_t tensor_offset(int rank, int tensor) const;
  /// Device table [size]: where the slot begins on each rank.
  char* const* bases(int slot) const { return bases_.as<char*>() + static_cast<size_t>(slot) * rows_.size(); }
  /// Device word: the epoch that used the slot last, or uses it now.
  uint64_t* epoch_cell(int slot) const { return cells_.as<uint64_t>() + slot; }
  /// Up to which epoch the ranks have given the slot back.
  FlagTable released(int slot) const { return {flag_bases_.as<uint64_t*>(), slot * size()}; }
  /// The user's flags, of which `idx` is the first meant.
  FlagTable flags(int64_t idx) const { return {flag_bases_.as<uint64_t*>(), num_released() + idx}; }
  /// Address of a flag of the user's on a rank.
  uint64_t* flag(int rank, int64_t idx) const {
    return reinterpret_cast<uint64_t*>(block_->peer(rank)) + num_released() + idx;
  }

 private:
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  int64_t num_released() const { return shape_.num_slots * size(); }
  int64_t data_offset() const;
  int64_t slot_bytes(int rank) const;

  const Shape shape_;
  const int rank_;
  std::vector<int64_t> rows_;  // by rank
  SlotPool slots_;
  std::unique_ptr<SymmetricBlock> block_;
  cuda::DeviceBuffer cells_;
  cuda::DeviceBuffer bases_;
  cuda::DeviceBuffer flag_bases_;
};

}  // namespace tangram::comm
