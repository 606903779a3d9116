// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The only place that reads the environment.
#include "tangram/env.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "core/require.hpp"

namespace tangram {

namespace {

constexpr const char* kTimeout = "TANGRAM_TIMEOUT_S";
constexpr const char* kNumThreads = "TANGRAM_NUM_THREADS";
constexpr const char* kSanityCheck = "TANGRAM_SANITY_CHECK";
constexpr const char* kCpuIsa = "TANGRAM_CPU_ISA";
constexpr const char* kProfile = "TANGRAM_PROFILE";
constexpr const char* kBatchCopies = "TANGRAM_BATCH_COPIES";
constexpr const char* kNcclLibrary = "TANGRAM_NCCL_LIBRARY";

#ifdef NDEBUG
constexpr bool kSanityCheckDefault = false;
#else
constexpr bool kSanityCheckDefault = true;
#endif

std::string raw(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

double read_number(const char* name, double fallback, double min, double max) {
  const std::string text = raw(name);
  if (text.empty()) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  require(end != text.c_str() && *end == '\0' && value >= min && value <= max,
          "Env: {} must be a number in [{}, {}] (got '{}')", name, min, max, text);
  return value;
}

bool read_flag(const char* name, bool fallback) {
  const std::string text = raw(name);
  if (text.empty()) return fallback;
  require(text == "0" || text == "1", "Env: {} must be 0 or 1 (got '{}')", name, text);
  return text == "1";
}

Env read() {
  Env env;
  env.timeout_s = read_number(kTimeout, env.timeout_s, 1e-3, 1e6);
  const double num_threads = read_number(kNumThreads, env.num_threads, 0, 4096);
  require(num_threads == static_cast<int>(num_threads), "Env: {} must be a whole number (got {})", kNumThreads,
          num_threads);
  env.num_threads = static_cast<int>(num_threads);
  env.sanity_check = read_flag(kSanityCheck, kSanityCheckDefault);
  env.cpu_isa = raw(kCpuIsa);
  require(env.cpu_isa.empty() || env.cpu_isa == "baseline" || env.cpu_isa == "avx2" || env.cpu_isa == "avx512" ||
              env.cpu_isa == "avx512_bf16",
          "Env: {} must be baseline, avx2, avx512 or avx512_bf16 (got '{}')", kCpuIsa, env.cpu_isa);
  env.profile = read_flag(kProfile, false);
  env.batch_copies = read_flag(kBatchCopies, true);
  if (const std::string library = raw(kNcclLibrary); !library.empty()) env.nccl_library = library;
  return env;
}

}  // namespace

const Env& Env::get() {
  static const Env env = read();
  return env;
}

Env::MpiLaunch Env::mpi_launch() {
  MpiLaunch launch;
  launch.job = raw("PMIX_NAMESPACE");
  if (launch.job.empty() || raw("OMPI_COMM_WORLD_SIZE").empty()) return {};
  const auto read_int = [](const char* name, double min) { return static_cast<int>(read_number(name, min, min, 1e6)); };
  launch.rank = read_int("OMPI_COMM_WORLD_RANK", 0);
  launch.size = read_int("OMPI_COMM_WORLD_SIZE", 1);
  launch.local_size = read_int("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  return launch;
}

std::vector<Env::Variable> Env::list() {
  const Env defaults;
  const auto variable = [](const char* name, std::string fallback, const char* help) {
    const std::string text = raw(name);
    return Variable{name, text.empty() ? std::move(fallback) : text, !text.empty(), help};
  };
  return {
      variable(kTimeout, fmt::format("{:g}", defaults.timeout_s), "seconds that a communication operation waits"),
      variable(kNumThreads, "0", "threads of the CPU backend; 0: one per core"),
      variable(kSanityCheck, kSanityCheckDefault ? "1" : "0", "poison rows that were not received, check for NaN"),
      variable(kCpuIsa, "", "instruction set of the CPU backend: baseline, avx2, avx512, avx512_bf16; empty: the best"),
      variable(kProfile, "0", "name kernels and transfers with NVTX ranges"),
      variable(kBatchCopies, "1", "Python's groups of GPUs: all copies of a stage in one call"),
      variable(kNcclLibrary, defaults.nccl_library, "the NCCL that transport nccl between GPUs loads"),
  };
}

}  // namespace tangram
