// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The regions of a program as offsets in two stretches of memory, and its casts as moves within one of them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/program/program.hpp"

namespace tangram {

/// NOTE [arena]: all regions of kArena lie in one landing tensor of a DevicePass, in rows of kArenaUnit bytes, which is
/// also the source of every cast. Offsets are alike on all ranks, so tables need no exchange. Nothing in it is used
/// twice in a pass: what one rank still reads is never overwritten by another.
inline constexpr int64_t kArenaUnit = 16;

struct ArenaLayout {
  std::vector<int64_t> offsets;  ///< of each region, in bytes from the begin of the arena or of the work
  int64_t arena_bytes = 0;
  int64_t work_bytes = 0;
  std::vector<Exchange> casts;  ///< by stage, in units of the arena on both sides, ascending
};

/// Regions one after the other, aligned to 256 bytes. Rows of all items must be multiples of kArenaUnit bytes.
ArenaLayout lay_out_arena(const Program& program);

}  // namespace tangram
