// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which GPU kernels the backends are compiled with, as people ask for them. Also of builds that have none, which know
// what others hold: nothing here needs CUDA.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tangram/attn_pass.hpp"
#include "tangram/machine.hpp"

namespace tangram {

/// Which kernels of a backend a build holds.
enum class KernelSet : int {
  kNone = 0,  ///< no GPU code
  kSample,    ///< a sample that CI compiles
  kAll,
};

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

/// Number of kernels of a build with the kernels `held`.
int num_kernels(const KernelFamily& family, KernelSet held);

/// The dims that a kernel computes for a pair of head dims, and whether it is for these alone.
struct HeadDimClass {
  int head_dim = 0;
  int head_dim_v = 0;
  bool exact = false;
};

struct KernelCatalog {
  std::string_view backend;
  KernelSet held = KernelSet::kNone;  ///< of this build
  std::string_view option;            ///< of CMake, that chooses them
  int largest_head_dim = 0;
  /// Forward before backward, each in the order in which dimensions look for their class.
  std::vector<KernelFamily> families;
  /// Class of head dims; nothing for dims that no kernel supports.
  std::optional<HeadDimClass> (*class_of)(int head_dim, int head_dim_v) = nullptr;
  /// Rates of the classes, relative to kernels of head dim 128.
  std::span<const HeadDimRate> rates;
};

/// Catalogs of the backends whose kernels the build has, the default one first.
std::vector<KernelCatalog> kernel_catalogs();
/// Null for a backend that is none of these.
const KernelCatalog* find_catalog(std::span<const KernelCatalog> catalogs, std::string_view backend);

}  // namespace tangram
