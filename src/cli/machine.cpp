// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/machine.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <thread>

#include "tangram/env.hpp"

namespace tangram::cli {

namespace {

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Library open_library(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL)) return Library(library);
  }
  return nullptr;
}

template <class Function>
Function* symbol(const Library& library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library.get(), name));
}

// The parts of the driver API that are asked here; signatures as documented by NVIDIA.
struct CudaDriver {
  explicit CudaDriver(const Library& library)
      : init(symbol<int(unsigned)>(library, "cuInit")),
        count(symbol<int(int*)>(library, "cuDeviceGetCount")),
        name(symbol<int(char*, int, int)>(library, "cuDeviceGetName")),
        attribute(symbol<int(int*, int, int)>(library, "cuDeviceGetAttribute")),
        memory(symbol<int(size_t*, int)>(library, "cuDeviceTotalMem_v2")) {}
  bool complete() const { return init && count && name && attribute && memory; }

  int (*init)(unsigned);
  int (*count)(int*);
  int (*name)(char*, int, int);
  int (*attribute)(int*, int, int);
  int (*memory)(size_t*, int);
};

Finding describe_gpu(const CudaDriver& driver, int device) {
  constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76;
  char name[128] = {};
  size_t bytes = 0;
  int major = 0, minor = 0, multiprocessors = 0;
  driver.name(name, sizeof(name) - 1, device);
  driver.memory(&bytes, device);
  driver.attribute(&major, kMajor, device);
  driver.attribute(&minor, kMinor, device);
  driver.attribute(&multiprocessors, kMultiprocessors, device);
  return {fmt::format("gpu {}", device), true,
          fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.0f} GiB", name, major, minor,
                      multiprocessors, static_cast<double>(bytes) / (1 << 30))};
}

}  // namespace

CpuInfo probe_cpu() {
  CpuInfo info;
  info.name = "unknown";
  info.num_cores = static_cast<int>(std::thread::hardware_concurrency());
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      info.name = line.substr(line.find(": ") + 2);
      break;
    }
  }
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) info.features.push_back("avx2");
  if (__builtin_cpu_supports("fma")) info.features.push_back("fma");
  if (__builtin_cpu_supports("avx512f")) info.features.push_back("avx512f");
  if (__builtin_cpu_supports("avx512bf16")) info.features.push_back("avx512bf16");
#endif
  return info;
}

std::vector<Finding> probe_gpus() {
  const Library library = open_library({"libcuda.so.1", "libcuda.so"});
  if (!library) return {{"gpu", false, "no CUDA driver (libcuda.so.1 is not there)"}};
  const CudaDriver driver(library);
  if (!driver.complete()) return {{"gpu", false, "libcuda.so.1 lacks the driver API"}};
  if (const int code = driver.init(0); code != 0) {
    return {{"gpu", false, fmt::format("the CUDA driver does not start (cuInit returned {})", code)}};
  }
  int count = 0;
  driver.count(&count);
  if (count == 0) return {{"gpu", false, "the CUDA driver sees no device"}};
  std::vector<Finding> gpus;
  for (int device = 0; device < count; ++device) gpus.push_back(describe_gpu(driver, device));
  return gpus;
}

Finding probe_nccl() {
  const std::string& name = Env::get().nccl_library;
  const Library library = open_library({name.c_str()});
  if (!library) return {"NCCL", false, name + " is not on the library path"};
  int version = 0;
  if (auto* get_version = symbol<int(int*)>(library, "ncclGetVersion")) get_version(&version);
  return {"NCCL", true, fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)};
}

Finding probe_mpi() {
  const Library library = open_library({"libmpi.so.40", "libmpi.so.12", "libmpi.so"});
  if (!library) return {"MPI", false, "libmpi is not on the library path"};
  char text[8192] = {};  // MPI_MAX_LIBRARY_VERSION_STRING of MPICH; OpenMPI's is shorter
  int length = 0;
  if (auto* get_version = symbol<int(char*, int*)>(library, "MPI_Get_library_version")) get_version(text, &length);
  const std::string version(text);
  return {"MPI", true, version.substr(0, version.find_first_of(",\n"))};
}

}  // namespace tangram::cli
