// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A CUDA runtime over host memory that counts what it is asked for, in place of NVIDIA's in programs that link
// counting_runtime.cpp: what the host side of a backend allocates, copies and waits for is tested without a GPU.
// Kernels do nothing.
#pragma once

#include <cstdint>

namespace tangram::testing {

struct RuntimeCounts {
  int64_t allocations = 0;
  int64_t frees = 0;
  int64_t live_bytes = 0;
  int64_t copies = 0;
  int64_t waits = 0;  // of the host, for a stream or the device
  int64_t launches = 0;
  int64_t device_queries = 0;  // of what does not change about a device
};

/// Since the program began.
RuntimeCounts runtime_counts();

}  // namespace tangram::testing
