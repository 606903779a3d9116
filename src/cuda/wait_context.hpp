// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a kernel that waits for another rank must know, and how it says that it waited in vain. Plain data for host and
// device.
#pragma once

#include <cstdint>

namespace tangram::cuda {

/// For what a kernel waited.
enum class WaitKind : uint32_t {
  kNone = 0,
  kArrival = 1,    ///< rows of a group_cast
  kCredit = 2,     ///< a peer's landing buffers to be free
  kReturn = 3,     ///< partial gradients
  kAllReduce = 4,  ///< values of an all_reduce
  kOrder = 5,      ///< not a wait: a peer opened another pass
  kHost = 6,       ///< not a wait: the host of a rank gave up
};

/// A failure in one word, so that it is written and read whole. Zero: none.
struct WaitFailure {
  WaitKind kind = WaitKind::kNone;
  int reporter = 0;    // rank that noticed
  int peer = 0;        // rank that did not come, or differs
  int stage = 0;       // up to 1023
  int pass = 0;        // number of the pass, up to 65535
  int other_pass = 0;  // kOrder: what the peer opened, up to 4095

  friend constexpr bool operator==(const WaitFailure&, const WaitFailure&) = default;
};

#ifdef __CUDACC__
#define TANGRAM_HOST_DEVICE __host__ __device__
#else
#define TANGRAM_HOST_DEVICE
#endif

TANGRAM_HOST_DEVICE constexpr uint64_t pack(const WaitFailure& failure) {
  return static_cast<uint64_t>(failure.kind) | static_cast<uint64_t>(failure.reporter & 1023) << 4 |
         static_cast<uint64_t>(failure.peer & 1023) << 14 | static_cast<uint64_t>(failure.stage & 1023) << 24 |
         static_cast<uint64_t>(failure.pass & 65535) << 34 | static_cast<uint64_t>(failure.other_pass & 4095) << 50;
}

TANGRAM_HOST_DEVICE constexpr WaitFailure unpack(uint64_t word) {
  return {static_cast<WaitKind>(word & 15),     static_cast<int>(word >> 4 & 1023),
          static_cast<int>(word >> 14 & 1023),  static_cast<int>(word >> 24 & 1023),
          static_cast<int>(word >> 34 & 65535), static_cast<int>(word >> 50 & 4095)};
}

/// In device memory, one for each rank. The words hold a packed WaitFailure or zero.
struct WaitContext {
  uint64_t* abort = nullptr;             // the group has failed; device memory, written by any rank
  uint64_t* const* aborts = nullptr;     // [size] every rank's abort word
  uint64_t* report = nullptr;            // where the own host reads it; host memory
  const uint64_t* host_abort = nullptr;  // where the own host gives up; host memory
  uint64_t timeout_ns = 0;
  int32_t rank = 0;
  int32_t size = 0;
};

}  // namespace tangram::cuda
