// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The environment variables of Tangram, read in one place. They exist only where a user cannot reach the code.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tangram {

/// All `TANGRAM_*` variables, read once per process at first use.
struct Env {
  /// TANGRAM_TIMEOUT_S: seconds that a communication operation waits for its peers. Positive. Long enough for a rank
  /// that saves, evaluates or compiles alone; from half of it on waits are mentioned (set_log_sink).
  double timeout_s = 600;
  /// TANGRAM_NUM_THREADS: threads of the CPU backend over all ranks of a process; 0 means one per core.
  int num_threads = 0;
  /// TANGRAM_SANITY_CHECK: 1 poisons rows that were not received with NaN and checks results for NaN, on hosts and
  /// GPUs; on by default in debug builds.
  bool sanity_check = false;
  /// TANGRAM_CPU_ISA: overrides the instruction set of the CPU backend (`baseline`, `avx2`, `avx512`,
  /// `avx512_bf16`); empty: the best.
  std::string cpu_isa;
  /// TANGRAM_PROFILE: 1 names kernels and transfers with NVTX ranges.
  bool profile = false;
  /// TANGRAM_BATCH_COPIES: DeviceCommunicatorConfig::batch_copies of Python's groups.
  bool batch_copies = true;

  /// TANGRAM_SECRET: by which ranks of a job that meet by TCP know each other (SocketGroupConfig::secret); at least
  /// kMinSecretBytes.
  std::string secret;
  static constexpr size_t kMinSecretBytes = 16;
  /// TANGRAM_ADDRESS: where ranks that torchrun or Slurm starts meet, `tcp:HOST:PORT` of rank 0 or, on one host,
  /// `unix:FOLDER` (SocketGroupConfig::address).
  std::string address;
  /// TANGRAM_NODE_ID: which node this process is on; ranks with equal values share a node. Empty: the host. At most
  /// kMaxNodeIdBytes. To be set where the host does not tell, and in tests that make several nodes of a host.
  std::string node_id;
  static constexpr size_t kMaxNodeIdBytes = 63;

  /// TANGRAM_NCCL_LIBRARY: the NCCL that transport nccl loads; a name is looked for as the system's loader does.
  std::string nccl_library = "libnccl.so.2";

  /// The process's values. Throws InvalidArgument when a variable is set to something that it cannot mean.
  static const Env& get();
  /// Puts other values in their place, for programs that say them in code. What was made before keeps its own: groups
  /// their deadline, backends their threads and instruction set, a loaded NCCL. No other thread may call into the
  /// library meanwhile. Throws InvalidArgument, and changes nothing, when a value is none that a variable can have.
  static void set(const Env& env);

  /// Variables that OpenMPI's mpirun sets for its processes. Read at each call.
  struct MpiLaunch {
    std::string job;  // empty when mpirun did not start this process
    int rank = 0;
    int size = 1;
    int local_size = 1;  // processes of the job on this host
  };
  static MpiLaunch mpi_launch();

  /// Variables that the launcher of a job sets for this process. Read at each call.
  struct Launch {
    std::string launcher;  // mpirun, torchrun, slurm; empty: none
    int rank = 0;
    int size = 1;
    int local_rank = 0;  // among the processes of the job on this host
  };
  /// Throws InvalidArgument where a launcher's variables contradict each other.
  static Launch launch();

  /// A variable as `tangram doctor` lists it.
  struct Variable {
    std::string name;
    std::string value;  // as set, or the default; of secrets only whether they are set
    bool is_set = false;
    std::string help;
  };
  static std::vector<Variable> list();
};

}  // namespace tangram
