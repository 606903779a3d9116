// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which backend a GPU gets and why: what follows from what CUDA says of it, so that it is tested without such GPUs.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tangram/backends.hpp"

namespace tangram {

/// How a build with these CUDA_ARCHITECTURES (`80-real 90-real 80-virtual`) runs on a compute capability: `machine code
/// for 8.0`, or `PTX for 8.0, ...`; empty: not at all.
std::string compiled_code(std::string_view architectures, int major, int minor);

/// What decides about the kernels of backend sm80.
struct Sm80Build {
  std::string_view architectures;
  int limit_kb = 0;  ///< TANGRAM_SM80_SHARED_KB; 0: not set
};

/// Fills `backend` and `reason` of a GPU whose other fields are known. `backends`: of this GPU, best first.
void choose_backend(GpuInfo& gpu, std::span<const AttnBackendInfo> backends, const Sm80Build& build);

}  // namespace tangram
