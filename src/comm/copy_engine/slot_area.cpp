// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/copy_engine/slot_area.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "core/rounding.hpp"
#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::comm {

namespace {

constexpr int64_t kAlignment = 1024;

}  // namespace

SlotArea::SlotArea(Communicator& control, SymmetricHeap& heap, Shape shape, const std::string& label)
    : shape_(std::move(shape)), slots_(shape_.num_slots) {
  const int64_t own_bytes = shape_.slot_bytes[static_cast<size_t>(control.rank())];
  block_ = heap.allocate(static_cast<size_t>(data_offset() + shape_.num_slots * own_bytes), label);
  cells_ = cuda::DeviceBuffer::zeros(static_cast<size_t>(shape_.num_slots) * sizeof(uint64_t));
  std::vector<char*> bases, flag_bases;
  for (int rank = 0; rank < control.size(); ++rank) flag_bases.push_back(block_->peer(rank));
  for (int slot = 0; slot < shape_.num_slots; ++slot) {
    for (int rank = 0; rank < control.size(); ++rank) bases.push_back(address(rank, slot));
  }
  bases_ = cuda::DeviceBuffer::copy_of(bases.data(), bases.size() * sizeof(char*));
  flag_bases_ = cuda::DeviceBuffer::copy_of(flag_bases.data(), flag_bases.size() * sizeof(char*));
}

SlotArea::~SlotArea() {
  const cuda::AllowAllocationDuringCapture allow;  // to wait, beside another call's capture
  static_cast<void>(cudaDeviceSynchronize());
}

int64_t SlotArea::data_offset() const {
  return round_up((num_released() + shape_.num_flags) * static_cast<int64_t>(sizeof(uint64_t)), kAlignment);
}

char* SlotArea::address(int rank, int slot) const {
  return block_->peer(rank) + data_offset() + slot * shape_.slot_bytes[static_cast<size_t>(rank)];
}

bool SlotArea::has_bytes_for(const Shape& wanted) const {
  for (size_t rank = 0; rank < shape_.slot_bytes.size(); ++rank) {
    if (wanted.slot_bytes[rank] > shape_.slot_bytes[rank]) return false;
  }
  return true;
}

bool SlotArea::has_room_for(const Shape& wanted) const {
  return has_bytes_for(wanted) && wanted.num_slots == shape_.num_slots && wanted.num_flags <= shape_.num_flags;
}

std::vector<int64_t> SharedSlotArea::with_room(const SlotArea::Shape& wanted) const {
  // Any rank may be the one that the next mask wants most of. With changing masks of one shape an area grows a few
  // times at most. The old area lives until the last key that used it goes.
  constexpr double kGrowth = 1.5, kLeastBytes = 16384;
  double bytes = static_cast<double>(*std::max_element(wanted.slot_bytes.begin(), wanted.slot_bytes.end()));
  bytes = std::max({bytes * (1 + *spare_), static_cast<double>(wanted.least_bytes), kLeastBytes});
  if (area_ != nullptr && area_->num_slots() == wanted.num_slots && !area_->has_bytes_for(wanted)) {
    bytes = std::max(bytes, kGrowth * static_cast<double>(area_->shape().slot_bytes.front()));
  }
  return std::vector(wanted.slot_bytes.size(), round_up(static_cast<int64_t>(bytes), kAlignment));
}

std::shared_ptr<SlotArea> SharedSlotArea::get(Communicator& control, SymmetricHeap& heap, const SlotArea::Shape& wanted,
                                              const std::string& label, const std::function<void()>& meet) {
  // What all ranks know alike decides.
  if (area_ != nullptr && area_->has_room_for(wanted)) return area_;
  meet();
  constexpr int64_t kFlagsOfARank = 64;
  SlotArea::Shape shape = wanted;
  shape.num_flags = std::max(wanted.num_flags, kFlagsOfARank * control.size());
  if (spare_.has_value()) shape.slot_bytes = with_room(wanted);
  if (area_ != nullptr && area_->num_slots() == wanted.num_slots) {
    const SlotArea::Shape& before = area_->shape();
    shape.num_flags = std::max(shape.num_flags, before.num_flags);
    for (size_t rank = 0; rank < before.slot_bytes.size(); ++rank) {
      shape.slot_bytes[rank] = std::max(shape.slot_bytes[rank], before.slot_bytes[rank]);
    }
  }
  // Nothing of the GPU's may wait for what a rank does that waits here.
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  area_.reset();  // freed now where no pass uses it: own copies into it have ended
  area_ = std::make_shared<SlotArea>(control, heap, std::move(shape), label);
  return area_;
}

SlotTensors::SlotTensors(Communicator& control, SymmetricHeap& heap, SharedSlotArea* shared, const Shape& shape,
                         const std::string& label, const std::function<void()>& meet)
    : row_bytes_(shape.row_bytes), rows_(shape.rows) {
  SlotArea::Shape area{{}, shape.num_slots, shape.num_flags, 0};
  for (const int64_t bytes : row_bytes_) area.least_bytes += round_up(shape.least_rows * bytes, kAlignment);
  for (int rank = 0; rank < control.size(); ++rank) {
    area.slot_bytes.push_back(tensor_offset(rank, static_cast<int>(row_bytes_.size())));
  }
  if (shared != nullptr) {
    area_ = shared->get(control, heap, area, label, meet);
    return;
  }
  meet();
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  area_ = std::make_shared<SlotArea>(control, heap, std::move(area), label);
}

int64_t SlotTensors::tensor_offset(int rank, int tensor) const {
  int64_t offset = 0;
  for (int t = 0; t < tensor; ++t) {
    offset += round_up(rows_[static_cast<size_t>(rank)] * row_bytes_[static_cast<size_t>(t)], kAlignment);
  }
  return offset;
}

}  // namespace tangram::comm
