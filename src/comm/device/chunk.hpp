// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Chunk: what a thread block of a kernel that moves rows takes at a time. Plain data for host and device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tangram::comm {

/// A short range of bytes, a multiple of 16 that is at most kMaxChunkBytes.
struct Chunk {
  int64_t from = 0;  // offset in source `tensor`
  int64_t to = 0;    // offset from bases[peer]
  int32_t num_bytes = 0;
  int16_t tensor = 0;
  int16_t peer = 0;
};
inline constexpr int kMaxChunkBytes = 16 << 10;

/// Cuts `num_bytes` into chunks.
inline void append_chunks(std::vector<Chunk>& chunks, int64_t from, int64_t to, int64_t num_bytes, int tensor,
                          int peer) {
  for (int64_t done = 0; done < num_bytes; done += kMaxChunkBytes) {
    const auto count = static_cast<int32_t>(std::min<int64_t>(kMaxChunkBytes, num_bytes - done));
    chunks.push_back({from + done, to + done, count, static_cast<int16_t>(tensor), static_cast<int16_t>(peer)});
  }
}

}  // namespace tangram::comm
