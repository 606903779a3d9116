// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where the GPU leaves what it refuses, in page-locked memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "schedule/builder/places.hpp"

namespace tangram::gpu::builder {

/// Allocates on construction.
class ErrorReportBuffer {
 public:
  /// Throws CudaError.
  ErrorReportBuffer();

  /// Enqueues the copy of a report of device memory. Throws CudaError.
  void copy(const schedule::builder::Report* report, cudaStream_t stream);

  /// Throws InvalidArgument for a mask that was refused since the last time that this was asked, as far as the host
  /// knows by now.
  void check();

  static constexpr size_t kBytes = sizeof(schedule::builder::Report);

 private:
  using Report = schedule::builder::Report;
  struct FreeHost {
    void operator()(Report* control_block) const;
  };

  std::unique_ptr<Report, FreeHost> control_block_;
  int32_t num_known_ = 0;  // masks refused
};

}  // namespace tangram::gpu::builder
