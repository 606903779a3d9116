// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a kernel that waits for another rank must know, and how it says that it waited in vain. Plain data for host and
// device.
#pragma once

#include <cstdint>

namespace tangram::cuda {

/// Event for which a kernel waited.
enum class WaitKind : uint32_t {
  kNone = 0,
  kReadyFlag = 1,     ///< rows of a group_cast
  kCredit = 2,        ///< a peer's receive buffers to be free
  kReturn = 3,        ///< partial gradients
  kAllReduce = 4,     ///< values of an all_reduce
  kOrder = 5,         ///< not a wait: a peer opened another pass
  kHost = 6,          ///< not a wait: the host of a rank gave up
  kEnded = 7,         ///< not a wait: the process of a rank has ended
  kSilent = 8,        ///< not a wait: the process of a rank does not run
  kCall = 9,          ///< not a wait: a peer opened the epoch for another call, see CallTags
  kUnreachable = 10,  ///< not a wait: nothing reaches the node of a rank, or comes from there
};

/// A failure in one word, so that it is written and read whole. Zero: none.
struct WaitFailure {
  WaitKind kind = WaitKind::kNone;
  int reporter = 0;  // rank that noticed
  int peer = 0;      // rank that did not come, or differs
  int stage = 0;     // up to 1023
  int pass = 0;      // number of the pass, up to 65535
  /// kOrder: the pass that the peer opened, up to 4095. Waits: the WaitKind (kHost, kEnded, kSilent, kUnreachable) of
  /// what a host noticed and the wait ended for, 0 when its deadline passed.
  int detail = 0;

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
         static_cast<uint64_t>(failure.pass & 65535) << 34 | static_cast<uint64_t>(failure.detail & 4095) << 50;
}

TANGRAM_HOST_DEVICE constexpr WaitFailure unpack(uint64_t word) {
  return {static_cast<WaitKind>(word & 15),     static_cast<int>(word >> 4 & 1023),
          static_cast<int>(word >> 14 & 1023),  static_cast<int>(word >> 24 & 1023),
          static_cast<int>(word >> 34 & 65535), static_cast<int>(word >> 50 & 4095)};
}

/// Failure of kind kCall: call tags (up to 19 bits) of the reporting rank and of its peer, in the place of stage, pass
/// and detail of other kinds.
struct CallTags {
  uint32_t reporter = 0;
  uint32_t peer = 0;
};

TANGRAM_HOST_DEVICE constexpr WaitFailure call_failure(int reporter, int peer, const CallTags& tags) {
  return {WaitKind::kCall,
          reporter,
          peer,
          static_cast<int>(tags.reporter & 1023),
          static_cast<int>(tags.reporter >> 10 | (tags.peer & 127) << 9),
          static_cast<int>(tags.peer >> 7)};
}

TANGRAM_HOST_DEVICE constexpr CallTags call_tags(const WaitFailure& failure) {
  return {static_cast<uint32_t>(failure.stage) | static_cast<uint32_t>(failure.pass & 511) << 10,
          static_cast<uint32_t>(failure.pass >> 9) | static_cast<uint32_t>(failure.detail) << 7};
}

/// A rank's row of a control block in host memory that all ranks, their hosts and their kernels, can write. The first
/// three words hold a packed WaitFailure or zero; waiting kernels use only them.
struct alignas(64) ControlBlockRow {
  uint64_t report = 0;  // for the rank's host: the group has failed on the device
  uint64_t padding0[7] = {};
  uint64_t host_abort = 0;  // for the rank's kernels: a host gives up
  uint64_t padding1[7] = {};
  uint64_t waiting = 0;  // for the rank's host: a kernel waits longer than half of its time, for what
  uint64_t padding2[7] = {};
  uint64_t heartbeat_ns = 0;
  int64_t process = 0;
  uint64_t has_left = 0;
  // Transports whose waits are inside a library (nccl): lets hosts tell for what and how long a rank waits.
  uint64_t operation = 0;  // where the rank's stream is: a packed WaitFailure whose detail counts; zero: nowhere
  uint64_t progress = 0;   // operations that the stream has begun
  uint64_t opened = 0;     // the packed OpenedPass that the host opened last
  uint64_t stopped = 0;    // the library's kernels of the rank run no more
  char text[200] = {};     // why this rank gave up
};

/// State of waits in device memory, one for each rank.
struct WaitContext {
  uint64_t* abort = nullptr;          // the group has failed, a packed WaitFailure; device memory, written by any rank
  uint64_t* const* aborts = nullptr;  // [size] every rank's abort word
  ControlBlockRow* control_block = nullptr;  // [size]
  uint64_t timeout_ns = 0;
  int32_t rank = 0;
  int32_t size = 0;
};

}  // namespace tangram::cuda
