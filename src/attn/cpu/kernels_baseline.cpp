// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels compiled for one instruction set; the flags are set in CMakeLists.txt.
#define TANGRAM_ISA baseline
#include "attn/cpu/backward_kernel.hpp"
#include "attn/cpu/forward_kernel.hpp"

namespace tangram::cpu {

const Kernels kBaselineKernels = {
    "baseline",          baseline::forward_scratch_bytes, baseline::backward_scratch_bytes, baseline::forward_tile,
    baseline::row_delta, baseline::backward_tile};

}  // namespace tangram::cpu
