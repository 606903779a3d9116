// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Large buffers in host memory that passes give back and take again.
#pragma once

#include <cstdint>

namespace tangram {

/// Bytes of this process's large host buffers.
struct HostMemoryUse {
  int64_t used_bytes = 0;      ///< by passes that run, and by tensors that live
  int64_t num_kept = 0;        ///< buffers that wait for the next pass
  int64_t kept_bytes = 0;      ///< their bytes
  int64_t max_kept_bytes = 0;  ///< which these never exceed
};

/// Default number of bytes kept: what passes over some 100,000 rows use. For larger passes a new mapping is cheap
/// beside the computation.
inline constexpr int64_t kDefaultKeptHostBytes = int64_t{256} << 20;

HostMemoryUse host_memory_use();
/// Sets the bound of kept bytes. Kept buffers beyond it are returned to the system at once. 0 keeps nothing: every pass
/// maps its memory anew. Throws InvalidArgument if it is negative.
void set_max_kept_host_bytes(int64_t max_kept_bytes);

}  // namespace tangram
