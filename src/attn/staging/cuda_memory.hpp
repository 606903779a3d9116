// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The current CUDA device as memory that tensors are staged in.
#pragma once

#include <memory>

#include "attn/staging/device_memory.hpp"

namespace tangram {

/// Device memory with a stream of its own, on the current device. Throws CudaError.
std::unique_ptr<DeviceMemory> make_cuda_memory();

}  // namespace tangram
