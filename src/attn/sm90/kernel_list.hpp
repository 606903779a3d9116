// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which kernels backend sm90 is compiled with, as people ask for them. Also of builds that have none, which know what
// others hold: nothing here needs CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/attn_pass.hpp"

namespace tangram::sm90 {

/// Which kernels a build holds (TANGRAM_SM90_KERNELS).
enum class KernelSet : int {
  kNone = 0,  ///< no GPU code
  kSample,    ///< of those for any head dims of a class only bfloat16 without softcap
  kAll,
};

/// Of this build.
KernelSet kernels_of_build();

/// The kernels of a pass that one class of head dims has, in all dtypes and variants. The kernels before and after a
/// backward kernel and those that combine parts belong to it, and are not counted.
struct KernelFamily {
  AttnPass pass = AttnPass::kForward;
  int head_dim = 0;        ///< of q and k, the largest
  int head_dim_v = 0;      ///< of v and out, likewise
  bool exact = false;      ///< for these dimensions alone; else for all below them too, in eights
  int64_t min_rows = 0;    ///< taken from so many query rows times heads on
  int work_tile = 0;       ///< forward: query rows times packed heads of a work tile; backward: its keys
  int step = 0;            ///< forward: keys of a step; backward: its queries, of all that are taken at once
  int step_softcap = 0;    ///< the same with softcap
  int warpgroups = 0;      ///< that compute; one more loads
  int kernels_a_call = 1;  ///< that share the work
  bool gathered = false;   ///< has instances that gather blocks of keys
  int num_kernels = 0;     ///< of a build with all
  int num_in_sample = 0;   ///< of a build with a sample
};

/// Forward before backward, each in the order in which dimensions look for their class.
std::vector<KernelFamily> list_kernels();

/// Of a build with these kernels.
int num_kernels(const KernelFamily& family, KernelSet held);

}  // namespace tangram::sm90
