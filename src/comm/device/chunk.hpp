// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Chunk: what a thread block of a kernel that moves rows takes at a time. Plain data for host and device.
#pragma once

#include <cstdint>

namespace tangram::comm {

/// A short stretch of bytes, a multiple of 16 that is at most kMaxChunkBytes.
struct Chunk {
  int64_t from = 0;  // offset in source `tensor`
  int64_t to = 0;    // offset from bases[peer]
  int32_t num_bytes = 0;
  int16_t tensor = 0;
  int16_t peer = 0;
};
inline constexpr int kMaxChunkBytes = 16 << 10;

}  // namespace tangram::comm
