// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Which keys of a mask come late, and by what a kernel learns that they are there. Plain data for host and device.
#pragma once

#include <cstdint>

#include "cuda/packed_arrays.hpp"
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

/// Those of a mask in device memory, uploaded once.
class DeviceLateKeys {
 public:
  DeviceLateKeys() = default;
  explicit DeviceLateKeys(const schedule::LateKeys& late_keys);

  /// Before each call is put on `stream`.
  void before_call(cudaStream_t stream) const { arrays_.before_call(stream); }
  /// Parameters of a call; `arrivals` may be null.
  ArrivalParams params(const DeviceArrivals* arrivals) const;
  size_t device_bytes() const { return arrays_.device_bytes(); }

 private:
  cuda::PackedArrays arrays_;
  cuda::PackedArray needed_, flags_;
  uint64_t all_ = 0;
};

}  // namespace tangram::sm90
