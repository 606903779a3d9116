// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/arrivals.hpp"

namespace tangram::sm90 {

DeviceLateKeys::DeviceLateKeys(const schedule::LateKeys& late_keys) : all_(late_keys.all()) {
  if (late_keys.empty()) return;
  needed_ = cuda::DeviceBuffer::copy_of(late_keys.needed().data(), late_keys.needed().size() * sizeof(uint64_t));
  flags_ = cuda::DeviceBuffer::copy_of(late_keys.flags().data(), late_keys.flags().size() * sizeof(int32_t));
}

ArrivalParams DeviceLateKeys::params(const DeviceArrivals* arrivals) const {
  if (arrivals == nullptr || all_ == 0) return {};
  return {*arrivals, needed_.as<uint64_t>(), flags_.as<int32_t>(), all_};
}

}  // namespace tangram::sm90
