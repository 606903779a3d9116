// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/device_late_keys.hpp"

namespace tangram::sm90 {

DeviceLateKeys::DeviceLateKeys(const schedule::LateKeys& late_keys) : all_(late_keys.all()) {
  if (late_keys.empty()) return;
  needed_ = arrays_.add(late_keys.needed());
  flags_ = arrays_.add(late_keys.flags());
  arrays_.upload();
}

ArrivalParams DeviceLateKeys::params(const DeviceArrivals* arrivals) const {
  if (arrivals == nullptr || all_ == 0) return {};
  return {*arrivals, arrays_.at<uint64_t>(needed_), arrays_.at<int32_t>(flags_), all_};
}

}  // namespace tangram::sm90
