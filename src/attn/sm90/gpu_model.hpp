// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The current device as schedules see it.
#pragma once

#include "cuda/device_facts.hpp"
#include "machine/gpu_model.hpp"

namespace tangram::sm90 {

inline GpuModel gpu_of_current_device() {
  const cuda::DeviceFacts& facts = cuda::facts_of_current_device();
  return {facts.multiprocessors, facts.l2_bytes, facts.memory_bytes_per_s};
}

}  // namespace tangram::sm90
