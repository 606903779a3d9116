// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Which kernels a build without a GPU holds (TANGRAM_SM90_KERNELS=sample): those in bfloat16 whose work tiles hold a
// power of two of query heads. For any head dims the sample has the classes 128 and 256 without softcap. The record of
// sources vouches for all others (tools/check_machine_code.py).
#pragma once

#include "attn/sm90/common/launch_kernel.hpp"
#include "tangram/error.hpp"

namespace tangram::sm90 {

/// Whether a build holds the kernels for any head dims of this class.
constexpr bool holds_any_dim(int head_dim_class) {
  return kAllKernels || head_dim_class == 128 || head_dim_class == 256;
}

[[noreturn]] inline void refuse_outside_of_sample() {
  throw NotAvailable(
      "sm90: this build has a sample of the kernels: bfloat16, query heads in powers of two, and for head dims other "
      "than 64 and 128 only the classes 128 and 256 without softcap; TANGRAM_SM90_KERNELS=all compiles all");
}

/// The one of two functions for an element type. Throws NotAvailable for float16 in a sample, where it is not linked.
/// Both have one type. Not a function of the two: a sample must not name what it does not link.
#ifdef TANGRAM_SM90_SAMPLE
#define TANGRAM_SM90_OF_ELEMENT(half, name) ((half) ? (refuse_outside_of_sample(), name##_bf16) : name##_bf16)
#else
#define TANGRAM_SM90_OF_ELEMENT(half, name) ((half) ? name##_f16 : name##_bf16)
#endif

}  // namespace tangram::sm90
