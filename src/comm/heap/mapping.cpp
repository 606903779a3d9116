// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/heap/mapping.hpp"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "cuda/check.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

/// The driver's functions, found through the runtime, so that nothing links libcuda.
struct Driver {
  PFN_cuMemCreate_v10020 create;
  PFN_cuMemRelease_v10020 release;
  PFN_cuMemAddressReserve_v10020 reserve;
  PFN_cuMemAddressFree_v10020 free_address;
  PFN_cuMemMap_v10020 map;
  PFN_cuMemUnmap_v10020 unmap;
  PFN_cuMemSetAccess_v10020 set_access;
  PFN_cuMemExportToShareableHandle_v10020 share;
  PFN_cuMemImportFromShareableHandle_v10020 import;
  PFN_cuMemGetAllocationGranularity_v10020 granularity;

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

 private:
  Driver() {
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemAddressReserve", reserve);
    find("cuMemAddressFree", free_address);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", set_access);
    find("cuMemExportToShareableHandle", share);
    find("cuMemImportFromShareableHandle", import);
    find("cuMemGetAllocationGranularity", granularity);
  }

  template <class Function>
  static void find(const char* name, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cuda::check(cudaGetDriverEntryPointByVersion(name, &found, 10020, cudaEnableDefault, &result), name);
    if (result != cudaDriverEntryPointSuccess) throw NotAvailable(fmt::format("Mapping: the driver lacks {}", name));
    function = reinterpret_cast<Function>(found);
  }
};

void check(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  if (status == CUDA_ERROR_OUT_OF_MEMORY) throw NotAvailable(fmt::format("{}: not enough device memory", what));
  throw CudaError(fmt::format("{}: must succeed (got error {})", what, static_cast<int>(status)));
}

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

}  // namespace

Mapping Mapping::create(size_t bytes, int device, std::span<const int> devices) {
  const Driver& driver = Driver::get();
  const CUmemAllocationProp wanted = properties(device);
  size_t granularity = 0;
  check(driver.granularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
  Mapping mapping;
  mapping.bytes_ = (bytes + granularity - 1) / granularity * granularity;
  if (mapping.bytes_ == 0) mapping.bytes_ = granularity;
  check(driver.create(&mapping.handle_, mapping.bytes_, &wanted, 0), "cuMemCreate");
  mapping.has_handle_ = true;
  mapping.map(devices);
  cuda::check(cudaMemset(mapping.data(), 0, mapping.bytes_), "cudaMemset");
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return mapping;
}

Mapping Mapping::import(int fd, size_t bytes, std::span<const int> devices) {
  Mapping mapping;
  mapping.bytes_ = bytes;
  check(Driver::get().import(&mapping.handle_, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle");
  mapping.has_handle_ = true;
  mapping.map(devices);
  return mapping;
}

void Mapping::map(std::span<const int> devices) {
  const Driver& driver = Driver::get();
  check(driver.reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
  check(driver.map(address_, bytes_, 0, handle_, 0), "cuMemMap");
  is_mapped_ = true;
  std::vector<CUmemAccessDesc> access;
  for (const int device : devices) {
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, {device}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  check(driver.set_access(address_, bytes_, access.data(), access.size()), "cuMemSetAccess");
}

Mapping::Mapping(Mapping&& other) noexcept { *this = std::move(other); }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(has_handle_, other.has_handle_);
  std::swap(is_mapped_, other.is_mapped_);
  return *this;
}

Mapping::~Mapping() {
  if (!has_handle_) return;
  const Driver& driver = Driver::get();
  if (is_mapped_) static_cast<void>(driver.unmap(address_, bytes_));
  if (address_ != 0) static_cast<void>(driver.free_address(address_, bytes_));
  static_cast<void>(driver.release(handle_));
}

UniqueFd Mapping::share() const {
  int fd = -1;
  check(Driver::get().share(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
  return UniqueFd(fd);
}

}  // namespace tangram::comm
