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
constexpr const char* kSecret = "TANGRAM_SECRET";
constexpr const char* kAddress = "TANGRAM_ADDRESS";
constexpr const char* kNodeId = "TANGRAM_NODE_ID";
constexpr const char* kNcclLibrary = "TANGRAM_NCCL_LIBRARY";

constexpr double kMinTimeout = 1e-3;
constexpr double kMaxTimeout = 1e6;
constexpr int kMaxThreads = 4096;

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

bool is_cpu_isa(const std::string& name) {
  return name.empty() || name == "baseline" || name == "avx2" || name == "avx512" || name == "avx512_bf16";
}

Env read() {
  Env env;
  env.timeout_s = read_number(kTimeout, env.timeout_s, kMinTimeout, kMaxTimeout);
  const double num_threads = read_number(kNumThreads, env.num_threads, 0, kMaxThreads);
  require(num_threads == static_cast<int>(num_threads), "Env: {} must be a whole number (got {})", kNumThreads,
          num_threads);
  env.num_threads = static_cast<int>(num_threads);
  env.sanity_check = read_flag(kSanityCheck, kSanityCheckDefault);
  env.cpu_isa = raw(kCpuIsa);
  require(is_cpu_isa(env.cpu_isa), "Env: {} must be baseline, avx2, avx512 or avx512_bf16 (got '{}')", kCpuIsa,
          env.cpu_isa);
  env.profile = read_flag(kProfile, false);
  env.batch_copies = read_flag(kBatchCopies, true);
  env.secret = raw(kSecret);
  require(env.secret.empty() || env.secret.size() >= Env::kMinSecretBytes,
          "Env: {} must be at least {} characters, drawn at random (got {})", kSecret, Env::kMinSecretBytes,
          env.secret.size());
  env.address = raw(kAddress);
  require(env.address.empty() || env.address.starts_with("tcp:") || env.address.starts_with("unix:"),
          "Env: {} must be tcp:HOST:PORT or unix:FOLDER (got '{}')", kAddress, env.address);
  env.node_id = raw(kNodeId);
  require(env.node_id.size() <= Env::kMaxNodeIdBytes, "Env: {} must be at most {} characters (got {})", kNodeId,
          Env::kMaxNodeIdBytes, env.node_id.size());
  if (const std::string library = raw(kNcclLibrary); !library.empty()) env.nccl_library = library;
  return env;
}

Env& values() {
  static Env env = read();
  return env;
}

}  // namespace

const Env& Env::get() { return values(); }

void Env::set(const Env& env) {
  require(env.timeout_s >= kMinTimeout && env.timeout_s <= kMaxTimeout,
          "Env::set: timeout_s must be seconds in [{}, {}] (got timeout_s={})", kMinTimeout, kMaxTimeout,
          env.timeout_s);
  require(env.num_threads >= 0 && env.num_threads <= kMaxThreads,
          "Env::set: num_threads must lie in [0, {}] (got num_threads={})", kMaxThreads, env.num_threads);
  require(is_cpu_isa(env.cpu_isa),
          "Env::set: cpu_isa must be baseline, avx2, avx512, avx512_bf16 or empty (got cpu_isa='{}')", env.cpu_isa);
  values() = env;
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

Env::Launch Env::launch() {
  const auto number = [](const char* name, double min) {
    require(!raw(name).empty(), "Env: {} must be set with the other variables of its launcher (got none)", name);
    const double value = read_number(name, 0, min, 1e6);
    require(value == static_cast<int>(value), "Env: {} must be a whole number (got {})", name, value);
    return static_cast<int>(value);
  };
  const auto made = [&](const char* launcher, const char* rank, const char* size, const char* local_rank) {
    Launch launch{launcher, number(rank, 0), number(size, 1), number(local_rank, 0)};
    require(launch.rank < launch.size && launch.local_rank <= launch.rank,
            "Env: {} must be below {} and {} not above it (got {} of {}, {})", rank, size, local_rank, launch.rank,
            launch.size, launch.local_rank);
    return launch;
  };
  if (!mpi_launch().job.empty()) {
    return made("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK");
  }
  // torchrun sets two lists of names; this is the one that no other launcher uses.
  if (!raw("TORCHELASTIC_RUN_ID").empty()) return made("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK");
  // A batch script has SLURM_PROCID too, but is no task of a step; an interactive shell is a step's only one.
  if (!raw("SLURM_STEP_ID").empty() && read_number("SLURM_STEP_NUM_TASKS", 1, 1, 1e6) > 1) {
    return made("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID");
  }
  return {};
}

std::vector<Env::Variable> Env::list() {
  const Env defaults;
  const auto variable = [](const char* name, std::string fallback, const char* help) {
    const std::string text = raw(name);
    return Variable{name, text.empty() ? std::move(fallback) : text, !text.empty(), help};
  };
  Variable secret = variable(kSecret, "", "by which ranks of a job that meet by TCP know each other");
  if (secret.is_set) secret.value = "(set)";
  return {
      variable(kTimeout, fmt::format("{:g}", defaults.timeout_s), "seconds that a communication operation waits"),
      variable(kNumThreads, "0", "threads of the CPU backend; 0: one per core"),
      variable(kSanityCheck, kSanityCheckDefault ? "1" : "0", "poison rows that were not received, check for NaN"),
      variable(kCpuIsa, "", "instruction set of the CPU backend: baseline, avx2, avx512, avx512_bf16; empty: the best"),
      variable(kProfile, "0", "name kernels and transfers with NVTX ranges"),
      variable(kBatchCopies, "1", "Python's groups of GPUs: all copies of a stage in one call"),
      secret,
      variable(kAddress, "", "where ranks that torchrun or Slurm starts meet: tcp:HOST:PORT of rank 0, or unix:FOLDER"),
      variable(kNodeId, "", "which node this process is on, alike for ranks that share one; empty: the host"),
      variable(kNcclLibrary, defaults.nccl_library, "the NCCL that transport nccl between GPUs loads"),
  };
}

}  // namespace tangram
