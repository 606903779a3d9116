// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The current device as schedules see it.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/device_info.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram::gpu {

inline GpuModel gpu_of_current_device() {
  const cuda::DeviceInfo& device = cuda::info_of_current_device();
  return {.multiprocessors = device.multiprocessors,
          .l2_bytes = device.l2_bytes,
          .memory_bytes_per_s = device.memory_bytes_per_s};
}

/// GpuModel of the current device, or the default if there is no device.
inline GpuModel gpu_of_current_device_or_default() {
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) return gpu_of_current_device();
  static_cast<void>(cudaGetLastError());  // no later call shall report it
  return {};
}

}  // namespace tangram::gpu
