// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The table of backends. A new one adds a line here and its folder to CMakeLists.txt.
#include "tangram/backends.hpp"

#include <fmt/format.h>

#include "attn/cpu/cpu_backend.hpp"
#include "attn/reference/reference_backend.hpp"
#include "attn/staging/staging_backend.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"
#ifdef TANGRAM_HAVE_CUDA
#include "attn/sm80/sm80_backend.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "attn/staging/cuda_memory.hpp"
#endif

namespace tangram {

namespace {

struct Entry {
  const char* name;
  AttnBackendInfo (*info)();
  std::unique_ptr<AttnBackend> (*make)(const AttnBackendOptions&);
};

#ifdef TANGRAM_HAVE_CUDA
AttnBackendInfo sm90_info() {
  const HopperCheck check = check_hopper();
  return {"sm90", check.found, check.text, MemoryKind::kDevice};
}
AttnBackendInfo sm80_info() {
  const Sm80Check check = check_sm80();
  return {"sm80", check.found, check.text, MemoryKind::kDevice};
}
template <typename Backend>
std::unique_ptr<AttnBackend> make_gpu(const AttnBackendOptions& options) {
  auto backend = std::make_unique<Backend>();
  if (!options.host_memory) return backend;
  return std::make_unique<StagingBackend>(std::move(backend), make_cuda_memory());
}
constexpr auto make_sm90 = make_gpu<Sm90Backend>, make_sm80 = make_gpu<Sm80Backend>;
#else
AttnBackendInfo missing_info(const char* name) {
  return {name, false, "this build has no GPU code: nvcc was not found", MemoryKind::kDevice};
}
AttnBackendInfo sm90_info() { return missing_info("sm90"); }
AttnBackendInfo sm80_info() { return missing_info("sm80"); }
std::unique_ptr<AttnBackend> make_missing(const AttnBackendOptions&) { return nullptr; }  // refused before
constexpr auto make_sm90 = make_missing, make_sm80 = make_missing;
#endif

const Entry kEntries[] = {
    {"sm90", sm90_info, make_sm90},
    {"sm80", sm80_info, make_sm80},
    {"cpu",
     [] {
       const CpuBackend backend;
       return AttnBackendInfo{.name = "cpu",
                              .available = true,
                              .detail = fmt::format("{}, {} threads", backend.isa(), backend.num_threads())};
     },
     [](const AttnBackendOptions& options) -> std::unique_ptr<AttnBackend> {
       return std::make_unique<CpuBackend>(options.num_threads, options.cpu_isa);
     }},
    {"reference",
     [] {
       return AttnBackendInfo{
           .name = "reference", .available = true, .detail = "float64, dense, slow: for checking the others"};
     },
     [](const AttnBackendOptions& options) -> std::unique_ptr<AttnBackend> {
       return std::make_unique<ReferenceBackend>(options.num_threads);
     }},
};

}  // namespace

std::vector<AttnBackendInfo> list_attn_backends() {
  std::vector<AttnBackendInfo> result;
  for (const Entry& entry : kEntries) result.push_back(entry.info());
  return result;
}

std::string best_attn_backend(MemoryKind memory) {
  std::string best;
  for (const AttnBackendInfo& info : list_attn_backends()) {
    if (info.memory != memory) continue;
    if (info.available) return info.name;
    if (best.empty()) best = info.name;
  }
  return best;
}

std::unique_ptr<AttnBackend> make_attn_backend(std::string_view name, const AttnBackendOptions& options) {
  require(options.num_threads >= 0, "make_attn_backend: num_threads must not be negative (got {})",
          options.num_threads);
  std::string names;
  for (const Entry& entry : kEntries) {
    if (name == entry.name) {
      const AttnBackendInfo info = entry.info();
      if (!info.available) {
        throw NotAvailable(fmt::format("make_attn_backend: {} cannot run here: {}", name, info.detail));
      }
      return entry.make(options);
    }
    names += names.empty() ? entry.name : fmt::format(", {}", entry.name);
  }
  require(false, "make_attn_backend: name must be one of {} (got '{}')", names, name);
  return nullptr;
}

}  // namespace tangram
