// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels compiled for one instruction set; the flags are set in CMakeLists.txt.
#define TANGRAM_ISA avx2
#include "attn/cpu/backward_kernel.hpp"
#include "attn/cpu/forward_kernel.hpp"

namespace tangram::cpu {

const Kernels kAvx2Kernels = {
    "avx2",          avx2::forward_scratch_bytes, avx2::backward_scratch_bytes, avx2::forward_tile,
    avx2::row_delta, avx2::backward_tile};

}  // namespace tangram::cpu
