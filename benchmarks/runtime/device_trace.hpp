// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a GPU did and when: kernels and copies as CUPTI recorded them, loaded at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tangram::bench {

/// One kernel, copy or fill.
struct DeviceActivity {
  std::string name;  ///< of a kernel without its parameters; "copy", "copy to peer", "fill"
  uint32_t stream = 0;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  uint64_t num_bytes = 0;  ///< of copies and fills
};

/// Records everything that the process puts on its GPU between start() and stop(). One at a time in a process.
class DeviceTrace {
 public:
  /// Throws NotAvailable without libcupti (TANGRAM_CUPTI_LIBRARY, default libcupti.so.13).
  DeviceTrace();
  void start();
  /// After the GPU has ended all of it: in the order in which it began.
  std::vector<DeviceActivity> stop();
};

}  // namespace tangram::bench
