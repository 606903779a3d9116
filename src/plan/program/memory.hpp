// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a program takes of memory where regions take it only while they are used, as on the host. Where they live for
// the pass it is what their layout says (arena.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "plan/program/emit.hpp"
#include "plan/stages.hpp"

namespace tangram {

/// NOTE [region lives]: a region is in memory from the first operation that names it to the last. A cast names its
/// sources and targets when it begins and when it is waited for.
struct RegionLives {
  // By operation.
  std::vector<std::vector<int>> born;   ///< regions that none before it names
  std::vector<std::vector<int>> dying;  ///< regions that none after it names
};
RegionLives region_lives(const Program& program);

/// Role of the first Program::num_kept regions in a pass.
enum class KeptRegions {
  kNone,   ///< regions as others
  kLeft,   ///< in memory from when they are born, beyond the end of the pass
  kGiven,  ///< in memory before the pass begins and until it has ended
};
/// Bytes of the regions in memory when they are most.
int64_t program_memory(const Program& program, const RegionLives& lives, KeptRegions kept);

/// A pass on the host.
struct PassMemory {
  int64_t argument_bytes = 0;  ///< q, k, v, out, lse; backward also dout, dq, dk, dv
  int64_t region_bytes = 0;    ///< program_memory

  int64_t bytes() const { return argument_bytes + region_bytes; }
};
/// `keeps`: forward leaves its kept regions, backward is given them; the plan must be able to (can_keep).
PassMemory pass_memory(const Plan& plan, int rank, AttnPass pass, CallShape call, bool keeps);

/// Plan::peak_bytes of the first `num_ranks` ranks, sooner than one by one where ranks are alike.
std::vector<int64_t> peak_bytes_of_ranks(const Plan& plan, int num_ranks);

}  // namespace tangram
