// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// By what a kernel learns that keys that come late are there. Plain data for host and device.
#pragma once

#include <cstdint>

#include "schedule/late_keys.hpp"
#include "tangram/device_arrivals.hpp"

namespace tangram::sm90 {

using schedule::kArrivalGranule;

/// A kernel's view. `pending == 0`: every key is there.
struct ArrivalParams {
  DeviceArrivals arrivals;
  const uint64_t* needed;      ///< for every granule of keys the bits of the flags that it needs
  const int32_t* flag_of_bit;  ///< [kMaxKeyFlags]
  uint64_t pending;            ///< all bits
};

}  // namespace tangram::sm90
