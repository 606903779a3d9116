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
std::unique_ptr<AttnBackend> make_sm90(const AttnBackendOptions& options) {
  auto backend = std::make_unique<Sm90Backend>();
  if (!options.host_memory) return backend;
  return std::make_unique<StagingBackend>(std::move(backend), make_cuda_memory());
}
#else
AttnBackendInfo sm90_info() {
  return {"sm90", false, "this build has no GPU code: nvcc was not found", MemoryKind::kDevice};
}
std::unique_ptr<AttnBackend> make_sm90(const AttnBackendOptions&) { return nullptr; }  // refused before
#endif

const Entry kEntries[] = {
    {"sm90", sm90_info, make_sm90},
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
