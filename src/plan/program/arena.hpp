// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where the regions of a program for a stream lie, and its casts as a pass of a transport takes them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/program/program.hpp"

namespace tangram {

/// NOTE [arena]: all regions of kArena are in one receive buffer of a DevicePass, in rows of kArenaUnit bytes. The
/// buffer is also the source of every cast. Offsets are alike on all ranks, so tables need no exchange. Nothing in it
/// is used twice in a pass: what one rank still reads is never overwritten by another. With K/V communication, each
/// region is a receive buffer of its own, as long as the rank needs it. Casts bring rows of the caller's K and V, all
/// by one exchange.
inline constexpr int64_t kArenaUnit = 16;

struct ArenaLayout {
  /// Offset of each region in bytes, from the begin of the arena or of the work memory; -1: takes no memory.
  std::vector<int64_t> offsets;
  int64_t arena_bytes = 0;
  int64_t work_bytes = 0;
  /// Stage of each group-cast: whether it returns partial results to kReturned, and its number among the casts that do
  /// or do not, in order of their begin.
  struct Stage {
    bool returns = false;
    int number = 0;
  };
  std::vector<Stage> stages;
  std::vector<Exchange> casts;  ///< by stage; within one arena in its units on both sides, ascending
  std::vector<Exchange> returns;
  std::vector<int> recv_buffers;  ///< regions that are receive buffers of their own; none: one arena
};

/// Regions one after the other, aligned to 256 bytes. Rows of all tensors must be multiples of kArenaUnit bytes.
ArenaLayout lay_out_arena(const Program& program);

}  // namespace tangram
