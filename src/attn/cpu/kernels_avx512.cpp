// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The kernels compiled for one instruction set; the flags are set in CMakeLists.txt.
#define TANGRAM_ISA avx512
#include "attn/cpu/backward_kernel.hpp"
#include "attn/cpu/forward_kernel.hpp"

namespace tangram::cpu {

const Kernels kAvx512Kernels = {
    "avx512",          avx512::forward_scratch_bytes, avx512::backward_scratch_bytes, avx512::forward_tile,
    avx512::row_delta, avx512::backward_tile};

}  // namespace tangram::cpu
