// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Which keys of a mask come late, and by what a kernel learns that they are there. Plain data for host and device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/device_buffer.hpp"
#include "tangram/device_arrivals.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::sm90 {

/// Late keys are marked for this many at a time: a tile may wait for up to one less on either side than it needs.
inline constexpr int kArrivalGranule = 16;

/// A kernel's view. `pending == 0`: every key is there.
struct ArrivalParams {
  DeviceArrivals arrivals;
  const uint64_t* needed;      ///< for every granule of keys the bits of the flags that it needs
  const int32_t* flag_of_bit;  ///< [kMaxKeyFlags]
  uint64_t pending;            ///< all bits
};

/// The same on the host, uploaded once for a mask.
class LateKeys {
 public:
  LateKeys() = default;
  /// Throws InvalidArgument for more than kMaxKeyFlags flags.
  LateKeys(std::span<const KeyArrival> arrivals, int64_t seqlen_k);

  /// 0 when all keys of [begin, end) are there from the start, else more the later the last of them comes.
  int turn(int64_t begin, int64_t end) const;
  bool empty() const { return all_ == 0; }
  int num_turns() const;
  /// Keys that come late, in whole granules.
  int64_t num_keys() const;
  /// Parameters of a call; `arrivals` may be null.
  ArrivalParams params(const DeviceArrivals* arrivals) const;
  size_t device_bytes() const { return needed_.bytes() + flags_.bytes(); }

 private:
  std::vector<uint64_t> bits_;
  cuda::DeviceBuffer needed_;
  cuda::DeviceBuffer flags_;
  uint64_t all_ = 0;
};

}  // namespace tangram::sm90
