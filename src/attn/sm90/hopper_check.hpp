// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whether the Hopper kernels can run on a device. What CUDA says of it is kept apart from what follows from that, so
// that the latter can be tested without such a device.
#pragma once

#include <string>

namespace tangram {

/// Name of a device, or the reason why the backend cannot run on it and what to use instead.
struct HopperCheck {
  bool found = false;
  std::string text;
};

/// Properties of the current device.
struct CudaDevice {
  std::string name;
  int major = 0;  ///< of the compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::string error;  ///< why there is none; empty when there is one
};

/// Never throws: without a device or a driver, `error` says so, and no later call of CUDA reports it again.
CudaDevice current_cuda_device();

HopperCheck check_hopper(const CudaDevice& device);
HopperCheck check_hopper();

/// Throws NotAvailable with the text of a check that has found no Hopper GPU.
void require_hopper(const HopperCheck& check);

/// Throws unless the current device is a Hopper GPU. The result is cached: reading all device properties takes longer
/// than a call.
void require_hopper();

}  // namespace tangram
