// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/packed_arrays.hpp"

#include <cstring>

#include "core/rounding.hpp"

namespace tangram::cuda {

PackedArray PackedArrays::append(const void* values, size_t bytes) {
  constexpr size_t kAlignment = 256;
  const size_t offset = round_up(host_.size(), kAlignment);
  host_.resize(offset + bytes);
  if (bytes > 0) std::memcpy(host_.data() + offset, values, bytes);
  return {offset, bytes};
}

void PackedArrays::upload() {
  device_ = DeviceBuffer::copy_of(host_.data(), host_.size());
  host_ = {};
}

}  // namespace tangram::cuda
