// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/device_facts.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "cuda/check.hpp"

namespace tangram::cuda {

namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

const DeviceFacts& facts_of_current_device() {
  static std::mutex mutex;
  static std::map<int, DeviceFacts> known;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  const DeviceFacts facts{attribute(cudaDevAttrMultiProcessorCount, device), attribute(cudaDevAttrL2CacheSize, device),
                          attribute(cudaDevAttrComputeCapabilityMajor, device),
                          attribute(cudaDevAttrComputeCapabilityMinor, device)};
  return known.emplace(device, facts).first->second;
}

}  // namespace tangram::cuda
