// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/packed_arrays.hpp"

#include <cstring>

#include "core/rounding.hpp"

namespace tangram::cuda {

PackedArray PackedArrays::append(const void* values, size_t bytes) {
  constexpr size_t kAlignment = 256;
  const PackedArray array{round_up(bytes_, kAlignment), bytes};
  if (bytes == 0) return array;
  bytes_ = array.offset + bytes;
  parts_.push_back({values, array});
  return array;
}

void PackedArrays::upload() {
  block_ = ListMemory::of_current_device().fill(bytes_, [&](std::byte* host) {
    for (const Part& part : parts_) {
      if (part.values != nullptr) {
        std::memcpy(host + part.to.offset, part.values, part.to.bytes);
      } else {
        std::memset(host + part.to.offset, 0, part.to.bytes);
      }
    }
  });
  parts_ = {};
}

}  // namespace tangram::cuda
