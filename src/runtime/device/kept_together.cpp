// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/kept_together.hpp"

#include <utility>

#include "core/rounding.hpp"

namespace tangram {

class KeptTogether::Piece final : public KeptMemory {
 public:
  Piece(std::shared_ptr<const Block> block, size_t offset) : block_(std::move(block)), offset_(offset) {}
  const void* data() const override { return static_cast<const std::byte*>(block_->memory->data()) + offset_; }
  void before_call(void* stream) const override { block_->memory->before_call(stream); }

 private:
  std::shared_ptr<const Block> block_;
  size_t offset_;
};

std::shared_ptr<const KeptMemory> KeptTogether::add(size_t bytes, std::function<void(std::byte*)> write) {
  constexpr size_t kAlignment = 256;  // as that of ProgramDevice::keep
  const size_t offset = round_up(bytes_, kAlignment);
  bytes_ = offset + bytes;
  writes_.push_back({offset, std::move(write)});
  return std::make_shared<const Piece>(block_, offset);
}

void KeptTogether::keep(const ProgramDevice& device) {
  if (writes_.empty()) return;
  block_->memory = device.keep(bytes_, [this](std::byte* to) {
    for (const Write& one : writes_) one.write(to + one.offset);
  });
}

}  // namespace tangram
