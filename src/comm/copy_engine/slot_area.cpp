// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/copy_engine/slot_area.hpp"

#include "comm/all_gather.hpp"

namespace tangram::comm {

namespace {

constexpr int64_t kAlignment = 1024;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

SlotArea::SlotArea(Communicator& control, SymmetricHeap& heap, const Shape& shape, const std::string& label)
    : shape_(shape), rank_(control.rank()), rows_(all_gather(control, shape.rows, label)), slots_(shape.num_slots) {
  block_ = heap.allocate(static_cast<size_t>(data_offset() + shape.num_slots * slot_bytes(rank_)), label);
  cells_ = cuda::DeviceBuffer::zeros(static_cast<size_t>(shape.num_slots) * sizeof(uint64_t));
  std::vector<char*> bases, flag_bases;
  for (int rank = 0; rank < control.size(); ++rank) flag_bases.push_back(block_->peer(rank));
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    for (int rank = 0; rank < control.size(); ++rank) {
      bases.push_back(block_->peer(rank) + data_offset() + slot * slot_bytes(rank));
    }
  }
  bases_ = cuda::DeviceBuffer::copy_of(bases.data(), bases.size() * sizeof(char*));
  flag_bases_ = cuda::DeviceBuffer::copy_of(flag_bases.data(), flag_bases.size() * sizeof(char*));
}

int64_t SlotArea::data_offset() const {
  return aligned((num_released() + shape_.num_flags) * static_cast<int64_t>(sizeof(uint64_t)));
}

int64_t SlotArea::tensor_offset(int rank, int tensor) const {
  int64_t offset = 0;
  for (int t = 0; t < tensor; ++t) {
    offset += aligned(rows_[static_cast<size_t>(rank)] * shape_.row_bytes[static_cast<size_t>(t)]);
  }
  return offset;
}

int64_t SlotArea::slot_bytes(int rank) const { return tensor_offset(rank, static_cast<int>(shape_.row_bytes.size())); }

char* SlotArea::address(int rank, int slot, int tensor) const {
  return block_->peer(rank) + data_offset() + slot * slot_bytes(rank) + tensor_offset(rank, tensor);
}

}  // namespace tangram::comm
