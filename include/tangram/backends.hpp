// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which attention backends exist, which of them this machine can run, and how to make one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tangram/attention.hpp"

namespace tangram {

struct AttnBackendOptions {
  /// Threads of the CPU backends, the calling one included; 0: TANGRAM_NUM_THREADS, or one per core. Divide it among
  /// the ranks when several share a process.
  int num_threads = 0;
  /// Instruction set of backend `cpu`: `baseline`, `avx2`, `avx512` or `avx512_bf16`; empty: TANGRAM_CPU_ISA, or the
  /// best that the machine has.
  std::string cpu_isa;
  /// The backend then works on host memory, whatever its device is. Each call copies tensors to the device that was
  /// current at construction, and results back. Without effect on those that do so anyway.
  bool host_memory = false;
};

/// A backend as `tangram doctor` lists it.
struct AttnBackendInfo {
  std::string name;
  bool available = false;
  /// Hardware that it uses (`avx512, 8 threads`), or the reason why it cannot run here.
  std::string detail;
  /// Where its tensors lie without AttnBackendOptions::host_memory.
  MemoryKind memory = MemoryKind::kHost;
};

/// Every backend of this build, best first.
std::vector<AttnBackendInfo> list_attn_backends();

/// The best backend of this build whose tensors lie there, whether or not it can run here; empty: there is none.
std::string best_attn_backend(MemoryKind memory);

/// Makes the backend `name` (`cpu`, `reference`, `sm90`). Throws InvalidArgument for an unknown name, with the list,
/// and NotAvailable for one that this machine cannot run, with the reason.
std::unique_ptr<AttnBackend> make_attn_backend(std::string_view name, const AttnBackendOptions& options = {});

}  // namespace tangram
