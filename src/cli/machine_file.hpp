// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The file of machine constants that `tangram doctor --measure` writes and `--machine FILE` reads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tangram/config.hpp"
#include "tangram/simulate.hpp"

namespace tangram::cli {

/// Constants of one backend's kernels on one kind of device, for one dtype and pair of head dims.
struct KernelEntry {
  std::string backend;
  std::string device;
  DType dtype = DType::kFloat32;
  int head_dim = 128;    ///< of q and k
  int head_dim_v = 128;  ///< of v; left out of a file where it is head_dim
  int workers = 1;       ///< threads or multiprocessors of a rank
  std::string source;    ///< `measured`, `fitted to ...`, `assumed`
  KernelModel forward;
  KernelModel backward;
};

/// One kind of link, as one transport uses it.
struct LinkEntry {
  std::string transport;
  bool between_nodes = false;
  CommEngine engine = CommEngine::kCopyEngine;
  std::string source;
  LinkModel link;
  int comm_workers = 0;                ///< with CommEngine::kWorkers
  double worker_link_bytes_per_s = 0;  ///< likewise
  // Between nodes; files may leave them out.
  int sms = MachineModel().between_sms;  ///< workers that transfers take from kernels
  int nics_per_node = 0;                 ///< network cards that ranks of a node share; 0: one for each
  double spine = 1;                      ///< what the network carries of all cards at once, in (0, 1]
};

struct MachineFile {
  std::string name;
  int ranks_per_node = 1;
  int devices_per_node = 1;
  int64_t memory_bytes = 0;  ///< of one rank
  double memory_bytes_per_s = 0;
  double stage_overhead_s = 0;
  std::vector<KernelEntry> kernels;
  std::vector<LinkEntry> links;
};

/// The constants of MachineModel's defaults as a file, to start from.
MachineFile builtin_machine_file();

std::string machine_file_to_json(const MachineFile& file);
/// Throws InvalidArgument, starting with `what`, for text that is malformed, misses a value or has unknown keys.
MachineFile parse_machine_file(std::string_view json, std::string_view what);

/// Which entries of a file are meant; empty text takes the first that fits.
struct MachineChoice {
  std::string backend;
  std::string transport;
};
/// The entries of a file as one machine: kernels of the backend, of `heads.dtype` and the nearest head dims if there
/// are several, links of the transport. Kernels of GPUs are compiled for classes of head dims. Those of the class of
/// `heads` are nearest; those of another are scaled like the default machine's rates. Throws InvalidArgument, naming
/// what the file has, when nothing fits.
MachineModel choose_machine(const MachineFile& file, const MachineChoice& choice, const HeadConfig& heads,
                            std::string_view what);

/// `head dim 128`, `head dim 192 (values 128)`.
std::string head_dim_text(int head_dim, int head_dim_v);

/// `copy_engine`, `workers`, `host_threads`.
std::string_view to_string(CommEngine engine);
/// Throws InvalidArgument, starting with `what`, for other names.
CommEngine parse_comm_engine(std::string_view name, std::string_view what);

}  // namespace tangram::cli
