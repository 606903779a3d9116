// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/device_info.hpp"

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

/// Twice a clock, of so many bits.
double memory_bytes_per_s(int device) {
  constexpr double kKilo = 1e3, kBits = 8;
  return 2 * kKilo * attribute(cudaDevAttrMemoryClockRate, device) *
         attribute(cudaDevAttrGlobalMemoryBusWidth, device) / kBits;
}

DeviceInfo ask(int device) {
  return {attribute(cudaDevAttrMultiProcessorCount, device), attribute(cudaDevAttrL2CacheSize, device),
          memory_bytes_per_s(device), attribute(cudaDevAttrComputeCapabilityMajor, device),
          attribute(cudaDevAttrComputeCapabilityMinor, device)};
}

}  // namespace

const DeviceInfo& info_of_current_device() {
  static std::mutex mutex;
  static std::map<int, DeviceInfo> known;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  // Every call asks: a thread that stays on its device takes no lock.
  thread_local int latest_device = -1;
  thread_local const DeviceInfo* latest = nullptr;
  if (device == latest_device) return *latest;
  const std::lock_guard lock(mutex);
  auto found = known.find(device);
  if (found == known.end()) found = known.emplace(device, ask(device)).first;
  latest_device = device;
  latest = &found->second;
  return *latest;
}

}  // namespace tangram::cuda
