// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/device_awaited_keys.hpp"

namespace tangram::sm90 {

DeviceAwaitedKeys::DeviceAwaitedKeys(const schedule::AwaitedKeys& awaited_keys) : all_(awaited_keys.all()) {
  if (awaited_keys.empty()) return;
  needed_ = arrays_.add(awaited_keys.needed());
  flags_ = arrays_.add(awaited_keys.flags());
  arrays_.upload();
}

ReadyFlagParams DeviceAwaitedKeys::params(const KvReadyFlags* ready_flags) const {
  if (ready_flags == nullptr || all_ == 0) return {};
  return {*ready_flags, arrays_.at<uint64_t>(needed_), arrays_.at<int32_t>(flags_), all_};
}

}  // namespace tangram::sm90
