// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/hopper_check.hpp"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "cuda/once_per_device.hpp"
#include "tangram/error.hpp"

namespace tangram {

CudaDevice current_cuda_device() {
  int device = 0;
  cudaDeviceProp properties{};
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // nothing that a later launch should report
    return {"", 0, 0, 0, cudaGetErrorName(status)};
  }
  return {properties.name, properties.major, properties.minor, properties.multiProcessorCount, ""};
}

HopperCheck check_hopper(const CudaDevice& device) {
  if (!device.error.empty()) {
    return {false, fmt::format("needs a Hopper GPU; use the backend cpu (got {})", device.error)};
  }
  // The kernels are machine code for sm_90a, which no other architecture runs, newer ones included.
  if (device.major != 9 || device.minor != 0) {
    return {false, fmt::format("needs a Hopper GPU (compute capability 9.0); use the backend cpu (got {}, {}.{})",
                               device.name, device.major, device.minor)};
  }
  return {true, fmt::format("{}, {} multiprocessors", device.name, device.multiprocessors)};
}

HopperCheck check_hopper() { return check_hopper(current_cuda_device()); }

void require_hopper(const HopperCheck& check) {
  if (!check.found) throw NotAvailable("Sm90Backend: " + check.text);
}

void require_hopper() {
  static cuda::OncePerDevice is_hopper;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) require_hopper(check_hopper());  // which says why there is none
  is_hopper.call([] { require_hopper(check_hopper()); });
}

}  // namespace tangram
