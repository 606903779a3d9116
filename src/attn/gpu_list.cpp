// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tangram/env.hpp"
#ifdef TANGRAM_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace tangram {

namespace {

constexpr int kLargeTierKb = 163;  // of shared memory a block, for which backend sm80 has larger tiles

/// An entry of CUDA_ARCHITECTURES.
struct Architecture {
  int number = 0;         // 10 * major + minor
  bool is_exact = false;  // 90a: no other capability runs it
  bool is_real = true, is_virtual = true;
};

Architecture parse_architecture(std::string_view text) {
  Architecture result;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result.number);
  if (error != std::errc()) return {};
  const std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  result.is_exact = rest.starts_with('a');
  if (rest.ends_with("-real")) result.is_virtual = false;
  if (rest.ends_with("-virtual")) result.is_real = false;
  return result;
}

std::string version_text(int number) { return fmt::format("{}.{}", number / 10, number % 10); }

/// Reasons of the backends before the chosen one, or of all that are for GPUs.
std::string refusals(std::span<const AttnBackendInfo> backends) {
  std::string text;
  for (const AttnBackendInfo& info : backends) {
    if (info.available) break;
    if (info.memory != MemoryKind::kDevice) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", info.name, info.detail);
  }
  return text;
}

std::string sm80_text(const GpuInfo& gpu, const Sm80Build& build) {
  const std::string code = compiled_code(build.architectures, gpu.major, gpu.minor);
  const int kb = build.limit_kb > 0 ? std::min(build.limit_kb, gpu.shared_memory_kb) : gpu.shared_memory_kb;
  std::string text = fmt::format("{}, tiles for {} KB of shared memory a block",
                                 code.empty() ? "no code for it in this build, calls will fail" : code,
                                 kb < kLargeTierKb ? "99" : "163");
  if (kb < gpu.shared_memory_kb) text += fmt::format(" (TANGRAM_SM80_SHARED_KB={})", build.limit_kb);
  return text;
}

#ifdef TANGRAM_HAVE_CUDA

Sm80Build sm80_build() {
  Sm80Build build{TANGRAM_SM80_ARCHITECTURES};
  for (const Env::Variable& variable : Env::list()) {
    if (variable.name != "TANGRAM_SM80_SHARED_KB" || !variable.is_set) continue;
    std::from_chars(variable.value.data(), variable.value.data() + variable.value.size(), build.limit_kb);
  }
  return build;
}

/// Makes the first device current again.
struct CurrentDevice {
  int device = 0;
  CurrentDevice() { static_cast<void>(cudaGetDevice(&device)); }
  ~CurrentDevice() { static_cast<void>(cudaSetDevice(device)); }
};

#endif

}  // namespace

std::string compiled_code(std::string_view architectures, int major, int minor) {
  const int wanted = 10 * major + minor;
  int machine_code = 0, ptx = 0;
  for (size_t begin = 0; begin < architectures.size();) {
    const size_t end = std::min(architectures.find(' ', begin), architectures.size());
    const Architecture one = parse_architecture(architectures.substr(begin, end - begin));
    begin = end + 1;
    const bool fits = one.is_exact ? one.number == wanted : one.number > 0 && one.number <= wanted;
    if (fits && one.is_real && one.number / 10 == major) machine_code = std::max(machine_code, one.number);
    if (fits && one.is_virtual) ptx = std::max(ptx, one.number);
  }
  if (machine_code > 0) return "machine code for " + version_text(machine_code);
  if (ptx == 0) return {};
  return fmt::format("PTX for {}, which the driver compiles at the first call", version_text(ptx));
}

void choose_backend(GpuInfo& gpu, std::span<const AttnBackendInfo> backends, const Sm80Build& build) {
  const auto chosen = std::find_if(backends.begin(), backends.end(), [](const AttnBackendInfo& info) {
    return info.available && info.memory == MemoryKind::kDevice;
  });
  const std::string others = refusals(backends);
  if (chosen == backends.end()) {
    gpu.reason = others + "; tensors in its memory are refused: compute on the CPU, with tensors in host memory";
    return;
  }
  gpu.backend = chosen->name;
  gpu.reason = chosen->name == "sm80" ? sm80_text(gpu, build) : "the kernels for its architecture, machine code";
  if (!others.empty()) gpu.reason += "; " + others;
}

std::vector<GpuInfo> list_gpus() {
  std::vector<GpuInfo> gpus;
#ifdef TANGRAM_HAVE_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // nothing that a later launch should report
    return gpus;
  }
  const Sm80Build build = sm80_build();
  const CurrentDevice restored;
  for (int device = 0; device < count; ++device) {
    GpuInfo gpu;
    cudaDeviceProp properties{};
    gpu.device = device;
    cudaError_t status = cudaGetDeviceProperties(&properties, device);
    if (status == cudaSuccess) status = cudaSetDevice(device);
    if (status == cudaSuccess) {
      gpu.name = properties.name;
      gpu.major = properties.major, gpu.minor = properties.minor;
      gpu.multiprocessors = properties.multiProcessorCount;
      gpu.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
      gpu.shared_memory_kb = static_cast<int>(properties.sharedMemPerBlockOptin / 1024);
      choose_backend(gpu, list_attn_backends(), build);
    } else {
      static_cast<void>(cudaGetLastError());
      gpu.reason = fmt::format("CUDA cannot use it (got {})", cudaGetErrorName(status));
    }
    gpus.push_back(std::move(gpu));
  }
#endif
  return gpus;
}

}  // namespace tangram
