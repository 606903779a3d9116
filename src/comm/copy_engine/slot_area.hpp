// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// SlotArea: memory on every rank that peers write into, in copies ("slots") that passes use in turn, with the flags by
// which ranks release slots to each other. SlotTensors: places of the tensors of one pass in it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/kernels.hpp"
#include "comm/device/slot_pool.hpp"
#include "comm/heap/symmetric_heap.hpp"
#include "cuda/device_buffer.hpp"

namespace tangram::comm {

/// NOTE [shared areas]: flags hold epochs, which only grow and are one sequence over all passes of a communicator. Each
/// slot has its own credit, and a rank notifies every peer at the end of every epoch. So passes of different masks, of
/// different tables and tensors, may use one area: a pass finds in a slot what another one has left.
class SlotArea {
 public:
  struct Shape {
    std::vector<int64_t> slot_bytes;  // by rank
    int num_slots = 1;
    int64_t num_flags = 0;    // further words on each rank that peers write, for the users' own purposes
    int64_t least_bytes = 0;  // of a slot on each rank, where memory is made that passes share
  };
  /// Collective over `control`, as SymmetricHeap::allocate; `shape` is alike on all ranks.
  SlotArea(Communicator& control, SymmetricHeap& heap, Shape shape, const std::string& label);
  /// Waits for the device, whose kernels and copies may use it.
  ~SlotArea();
  SlotArea(const SlotArea&) = delete;
  SlotArea& operator=(const SlotArea&) = delete;

  const Shape& shape() const { return shape_; }
  bool has_room_for(const Shape& wanted) const;
  bool has_bytes_for(const Shape& wanted) const;

  SlotPool& slots() { return slots_; }
  int num_slots() const { return shape_.num_slots; }

  /// Where a slot begins on a rank, as this rank's GPU and copy engines see it.
  char* address(int rank, int slot) const;
  /// Device table [size]: where the slot begins on each rank.
  char* const* bases(int slot) const { return bases_.as<char*>() + static_cast<size_t>(slot * size()); }
  /// Device word: the epoch that used the slot last, or uses it now.
  uint64_t* epoch_cell(int slot) const { return cells_.as<uint64_t>() + slot; }
  /// Up to which epoch the ranks have given the slot back.
  FlagTable released(int slot) const { return {flag_bases_.as<uint64_t*>(), slot * size()}; }
  /// The users' flags, of which `idx` is the first meant.
  FlagTable flags(int64_t idx) const { return {flag_bases_.as<uint64_t*>(), num_released() + idx}; }
  /// Address of a flag of the users' on a rank.
  uint64_t* flag(int rank, int64_t idx) const {
    return reinterpret_cast<uint64_t*>(block_->peer(rank)) + num_released() + idx;
  }

 private:
  int64_t size() const { return static_cast<int64_t>(shape_.slot_bytes.size()); }
  int64_t num_released() const { return shape_.num_slots * size(); }
  int64_t data_offset() const;

  const Shape shape_;
  SlotPool slots_;
  std::unique_ptr<SymmetricBlock> block_;
  cuda::DeviceBuffer cells_;
  cuda::DeviceBuffer bases_;
  cuda::DeviceBuffer flag_bases_;
};

/// The area that passes of one kind share. It is replaced by a larger one where a pass needs more; passes that were
/// made before keep theirs.
class SharedSlotArea {
 public:
  /// `spare`: how much more than is wanted it gets, as a share of that. Other masks of a shape want somewhat more rows,
  /// and far more returned rows. None: what the largest of its passes want, and no more.
  explicit SharedSlotArea(std::optional<double> spare) : spare_(spare) {}

  /// Collective where the area must grow, before which it calls `meet`; `wanted` is alike on all ranks.
  std::shared_ptr<SlotArea> get(Communicator& control, SymmetricHeap& heap, const SlotArea::Shape& wanted,
                                const std::string& label, const std::function<void()>& meet);
  /// Bytes of a rank's part of all slots.
  int64_t bytes(int rank) const {
    if (area_ == nullptr) return 0;
    return area_->num_slots() * area_->shape().slot_bytes[static_cast<size_t>(rank)];
  }

 private:
  /// Bytes of a slot by rank, where there is to be room for other masks, too.
  std::vector<int64_t> with_room(const SlotArea::Shape& wanted) const;

  const std::optional<double> spare_;
  std::shared_ptr<SlotArea> area_;
};

class SlotTensors {
 public:
  struct Shape {
    std::vector<int64_t> rows;  // by rank
    std::vector<int64_t> row_bytes;
    int num_slots = 1;
    int64_t num_flags = 0;
    int64_t least_rows = 0;  // as SlotArea::Shape::least_bytes
  };
  /// Places tensors in `shared`'s area or, if that is null, in an area of their own. Collective if memory is made;
  /// calls `meet` before that.
  SlotTensors(Communicator& control, SymmetricHeap& heap, SharedSlotArea* shared, const Shape& shape,
              const std::string& label, const std::function<void()>& meet);

  SlotArea* operator->() const { return area_.get(); }

  /// Tensor `tensor` of a slot on a rank.
  char* address(int rank, int slot, int tensor) const {
    return area_->address(rank, slot) + tensor_offset(rank, tensor);
  }
  /// Where the tensor begins in any slot of a rank, counted from the slot's begin.
  int64_t tensor_offset(int rank, int tensor) const;

 private:
  std::vector<int64_t> row_bytes_;
  std::vector<int64_t> rows_;  // by rank
  std::shared_ptr<SlotArea> area_;
};

}  // namespace tangram::comm
