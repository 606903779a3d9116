// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What GPUs want of the program of a rank: one function for those who run it and those who print it.
#pragma once

#include <string_view>

#include "plan/program/emit.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/dist_attention.hpp"

namespace tangram {

/// Abilities of a transport and a backend on which programs depend.
struct GpuAbilities {
  KernelTransfers transfers;
  std::string_view transport = "the transport", backend = "the backend";  ///< their names, for errors
  int max_ready_flags = 0;  ///< that one call of attention can wait for; 0: it waits for none
  int local_kv_halo = -1;   ///< as ProgramTarget::local_kv_halo
  /// Whether two ranks of this host have one GPU, so that a kernel of one that waits would keep those of the other out.
  bool shares_gpus = false;
  /// Whether the attention of every rank is fastest on keys that have come.
  bool wants_all_keys = false;
};

/// The target of `rank`'s programs for passes that lay transfers and kernels as `forward` and `backward` say; without
/// `with_backward` there is no backward pass. Throws NotAvailable, alike on all ranks, for kSingleLaunch where one
/// kernel cannot wait for all keys.
ProgramTarget gpu_target(const Plan& plan, int rank, const GpuAbilities& abilities, DeviceOverlap forward,
                         DeviceOverlap backward, bool with_backward);

}  // namespace tangram
